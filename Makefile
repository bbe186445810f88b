# A thin front over CMake: the commands people type. `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=
SECONDS_EACH ?= 60 # of `make fuzz`

.PHONY: all demo test bench bench-peers check-format format tidy fuzz install clean help

all: ## build build/polypath and build/libpolypath.so
	@cmake --preset release >/dev/null
	@cmake --build --preset release

demo: ## install what is missing, build, run the demo
	@scripts/dependencies build demo
	@$(MAKE) --no-print-directory all
	@build/polypath demo

test: ## install what is missing, build, run every test and check
	@scripts/dependencies build demo test
	@scripts/test

bench: all ## build, then name the benchmark programs
	@ls build/bench/* 2>/dev/null || true

bench-peers: ## measure against Open MPI, MPICH and others, under 3 minutes (bench/peers.sh --help for more)
	@bench/peers.sh

check-format: ## does the code follow .clang-format?
	@scripts/format --check

format: ## make it so
	@scripts/format

tidy: ## run clang-tidy over the library and the command line
	@scripts/tidy

fuzz: ## run every fuzzer for SECONDS_EACH seconds
	@scripts/fuzz $(SECONDS_EACH)

install: ## install below $(DESTDIR)$(PREFIX)
	@cmake --preset release -DCMAKE_INSTALL_PREFIX="$(PREFIX)" >/dev/null
	@cmake --build --preset release
	@DESTDIR="$(DESTDIR)" cmake --install build

clean: ## remove everything that was built
	@rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 24
