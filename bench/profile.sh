#!/bin/bash
# What a call on one host consists of:
#
#   bench/profile.sh instructions   how many instructions a call takes on a rank,
#                                   and in which functions (callgrind): a run of
#                                   many calls less a run of few. Both ranks on
#                                   one core, so that nobody polls
#   bench/profile.sh phases         where the time of larger calls goes: copying,
#                                   reducing, waiting, kernel (perf, all of it)
#   bench/profile.sh                both
#
# Installs valgrind and perf from Debian where they are missing.
set -eu
cd "$(dirname "$0")/.."
scripts/dependencies build profile
cmake --preset release >/dev/null
cmake --build --preset release --target polypath_cli >/dev/null
polypath=$PWD/build/polypath
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export POLYPATH_CACHE=none POLYPATH_TUNE=0 POLYPATH_PATHS=shm

# calls COLLECTIVE BYTES BLOCKS FILE: rank 0 under callgrind
calls() {
    taskset -c 0 "$polypath" run -n 2 --no-prefix -- sh -c '
        if [ "$POLYPATH_RANK" = 0 ]; then
            exec valgrind --tool=callgrind --callgrind-out-file="$4" "$0" bench "$1" -l "$2" -n "$3" -w 1 --in-place no --check no
        fi
        exec "$0" bench "$1" -l "$2" -n "$3" -w 1 --in-place no --check no' "$polypath" "$1" "$2" "$3" "$4" >"$4.txt" 2>&1 ||
        { cat "$4.txt"; exit 1; }
}

instructions() {
    echo "## Instructions of a call, rank 0 of 2"
    for point in "all_reduce 8" "all_reduce 8K" "broadcast 8" "all_gather 8" "sendrecv 8" "all_reduce 64K" "all_reduce 1M"; do
        set -- $point
        calls "$1" "$2" 50 "$out/few"
        calls "$1" "$2" 250 "$out/many"
        python3 bench/profile_table.py instructions "$1" "$2" "$out/few" "$out/many" 200
    done
}

phases() {
    echo "## Where the time goes, 2 ranks"
    for point in "all_reduce 1M" "all_reduce 64M" "all_gather 64M" "reduce_scatter 64M"; do
        set -- $point
        perf record -q -e cpu-clock -F 4000 -o "$out/perf" -- "$polypath" run -n 2 --bind core --no-prefix -- \
            "$polypath" bench "$1" -l "$2" --in-place no --check no --seconds 2 >"$out/rows" 2>&1 || { cat "$out/rows"; exit 1; }
        perf report -i "$out/perf" --no-children -g none --stdio -F overhead,dso,sym 2>/dev/null >"$out/report"
        python3 bench/profile_table.py phases "$1" "$2" "$out/report"
    done
}

for part in ${*:-instructions phases}; do
    $part
    echo
done
