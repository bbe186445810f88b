#!/bin/bash
# The figures of several paths between two hosts, in labs on this machine (root):
#
#   bench/lab.sh sum      64 MiB over each link alone and over all of them, by
#                         turns in one run: 4+1, 2+2 and 4+2+1 Gbit/s, one and
#                         two ranks a host; the ratio to the sum of the links
#   bench/lab.sh sizes    8 B to 256 MiB: all paths against the best single one
#   bench/lab.sh adapt    a link is halved and comes back: calls until the rate
#                         is 0.9 of the new sum, and how far the shares wander
#   bench/lab.sh start    creation of 4 ranks with a cold and a warm cache
#   bench/lab.sh cpu      what a call takes of the cores, and the least time that
#                         these and the links allow
#   bench/lab.sh          all of them
#
# POLYPATH=... names the command (default build/polypath). Prints tables; the
# raw rows (JSON) go to $OUT (default: a temporary folder, removed at the end).
set -eu
cd "$(dirname "$0")/.."
polypath=${POLYPATH:-$PWD/build/polypath}
out=${OUT:-$(mktemp -d)}
lab=figures$$
mkdir -p "$out"
clean_up() {
    "$polypath" lab down --name "$lab" >/dev/null 2>&1 || true
    [ -n "${OUT:-}" ] || rm -rf "$out"
}
trap clean_up EXIT
export POLYPATH_CACHE=none

# lab_bench NAME "LINK LINK..." RANKS BENCH_ARGUMENTS...
lab_bench() {
    local name=$1 ranks=$3 links=()
    for link in $2; do links+=(--link "$link"); done
    shift 3
    "$polypath" lab run --name "$name" --hosts 2 "${links[@]}" -n "$ranks" --no-prefix -- \
        "$polypath" bench --json "$@"
}

sum() {
    echo "## All paths together against the sum of the single ones, 64 MiB"
    for links in "4gbit 1gbit" "2gbit 2gbit" "4gbit 2gbit 1gbit"; do
        for ranks in 2 4; do
            file=$out/sum-${links// /-}-$ranks.json
            lab_bench "$lab" "$links" "$ranks" all_reduce all_gather reduce_scatter broadcast sendrecv pingpong \
                -l 64M --in-place no --compare-paths --seconds "${SECONDS_EACH:-4}" >"$file"
            python3 bench/lab_table.py sum "$links" "$ranks" "$file"
        done
    done
}

sizes() {
    echo "## All paths together against the best single one, by size (4+1 Gbit/s, 2 ranks)"
    file=$out/sizes.json
    lab_bench "$lab" "4gbit 1gbit" 2 all_reduce -l 8,32,128,512,2K,8K,32K,128K,512K,2M,8M,32M,128M,256M \
        --in-place no --compare-paths --seconds "${SECONDS_EACH:-3}" >"$file"
    python3 bench/lab_table.py sizes "4gbit 1gbit" 2 "$file"
}

adapt() {
    echo "## A link is halved (4 to 2 Gbit/s) and comes back; 64 MiB AllReduce, one line a call"
    "$polypath" lab up --name "$lab" --hosts 2 --link 4gbit --link 1gbit >/dev/null
    "$polypath" lab run --name "$lab" -n 2 --no-prefix -- \
        "$polypath" bench all_reduce -l 64M --follow --interval 0 --json --check no --seconds 36 |
        python3 bench/lab_table.py stamp >"$out/adapt.json" &
    local job=$!
    sleep 14
    date +%s.%N >"$out/halved"
    "$polypath" lab set --name "$lab" --link eth0 --rate 2gbit
    sleep 10
    date +%s.%N >"$out/restored"
    "$polypath" lab set --name "$lab" --link eth0 --rate 4gbit
    wait $job
    "$polypath" lab down --name "$lab" >/dev/null
    python3 bench/lab_table.py adapt "4gbit 1gbit" 2 "$out/adapt.json" "$out/halved" "$out/restored"
}

start() {
    echo "## Creation of a communicator of 4 ranks on 2 hosts (4+1 Gbit/s), cold and warm cache"
    local cache=$out/cache.json
    "$polypath" lab up --name "$lab" --hosts 2 --link 4gbit --link 1gbit >/dev/null
    for round in 1 2 3 4 5; do
        rm -f "$cache"
        for state in cold warm; do
            echo -n "$state: "
            POLYPATH_CACHE=$cache "$polypath" lab run --name "$lab" -n 4 --no-prefix -- build/bench/create_time
        done
    done
    "$polypath" lab down --name "$lab" >/dev/null
}

# Hundredths of a second that all cores have worked so far.
worked() {
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat
}

cpu() {
    echo "## What a call of 64 MiB takes of the cores (start and end of the program left out: a long run less a short one)"
    for links in "4gbit 1gbit" "4gbit 2gbit 1gbit"; do
        for ranks in 2 4; do
            file=$out/cpu-${links// /-}-$ranks.json
            rm -f "$file"
            for collective in all_reduce all_gather reduce_scatter broadcast sendrecv; do
                for seconds in 1 "${SECONDS_EACH:-4}"; do
                    before=$(worked)
                    row=$(lab_bench "$lab" "$links" "$ranks" $collective -l 64M --in-place no --check no --seconds "$seconds")
                    echo "{\"seconds\": $seconds, \"worked\": $(($(worked) - before)), \"row\": $row}" >>"$file"
                done
            done
            python3 bench/lab_table.py cpu "$links" "$ranks" "$file"
        done
    done
}

for part in ${*:-sum sizes adapt start cpu}; do
    $part
    echo
done
