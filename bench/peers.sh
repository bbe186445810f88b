#!/bin/bash
# Compares Polypath with Open MPI, MPICH, UCC and gloo (what of it is there) on
# this machine's memory and prints tables of ratios; docs/measurements.md says
# how to read them. Usage: bench/peers.sh [OPTION...]   (--help lists them)
#
# Installs Open MPI and MPICH from Debian where they are missing. As root
# everything runs in a network namespace of its own that has only a loopback
# interface; the namespace has no name and ends with its last process.
set -euo pipefail
cd "$(dirname "$0")/.."

case " $* " in
*" --help "* | *" -h "*) exec python3 bench/peers_drive.py "$@" ;;
esac

out=build/peers previous=
for word in "$@"; do
    case $word in --out=*) out=${word#--out=} ;; esac
    [ "$previous" != --out ] || out=$word
    previous=$word
done

scripts/dependencies build peers
cmake --preset release >/dev/null
cmake --build --preset release --target polypath_cli bench_peer_polypath bench_peer_host >/dev/null

flags="-std=c17 -D_GNU_SOURCE -O3 -Wall -Wextra -Werror -Ibench"
for mpi in openmpi mpich; do
    program=build/bench/peer_mpi.$mpi
    # A user's own MPI may have no such name; then that candidate is left out.
    command -v "mpicc.$mpi" >/dev/null || continue
    "mpicc.$mpi" $flags -o "$program" bench/peer_mpi.c bench/peer/serve.c
done

if pkg-config --exists ucc && command -v mpicc.openmpi >/dev/null; then
    mpicc.openmpi $flags $(pkg-config --cflags ucc) -o build/bench/peer_ucc bench/peer_ucc.c bench/peer/serve.c \
        $(pkg-config --libs ucc) -Wl,-rpath,"$(pkg-config --variable=libdir ucc)"
fi

drive() { python3 bench/peers_drive.py "$@"; }
if [ "$(id -u)" = 0 ] && unshare --net true 2>/dev/null; then
    drive() { unshare --net -- sh -c 'ip link set lo up && exec python3 bench/peers_drive.py "$@"' drive "$@"; }
else
    echo "no network namespace (that takes root); the jobs are told to keep to the loopback interface"
fi
drive "$@"
python3 bench/peers_table.py "$out/points.json" --out "$out" | tee "$out/tables.md"
