#!/bin/bash
# What `make install` leaves is enough to build and run a program with nothing
# but pkg-config. Usage: check_install.sh BUILD
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

DESTDIR=$root cmake --install "$1" >/dev/null
pc=$(find "$root" -name polypath.pc)
[ -n "$pc" ] || { echo "no polypath.pc was installed"; exit 1; }
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$root
cc -std=c17 -Wall -Wextra -Werror "$source/examples/all_reduce.c" -o "$root/all_reduce" \
    $(pkg-config --cflags --libs polypath)

libraries=$root$(pkg-config --variable=libdir polypath | sed "s|^$root||")
[ "$(pkg-config --modversion polypath)" = "$(basename "$(readlink -f "$libraries/libpolypath.so")" | sed 's/.*\.so\.//')" ]
env LD_LIBRARY_PATH="$libraries" "$root/all_reduce" # without a launcher: one rank

for file in share/man/man3/polypath_all_reduce.3 share/man/man3/polypath.3 share/doc/polypath/LICENSE \
    polypath/nccl/libnccl.so.2 polypath/nccl/libpolypath-nccl.so; do
    [ -n "$(find "$root" -path "*/$file")" ] || { echo "$file was not installed"; exit 1; }
done
# Nothing of the inside is installed.
installed=$(find "$root" -name "*.h" -printf "%f\n" | LC_ALL=C sort)
[ "$installed" = "$(cd "$source/include/polypath" && LC_ALL=C ls)" ] || { echo "installed headers: $installed"; exit 1; }
