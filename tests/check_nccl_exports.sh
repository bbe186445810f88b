#!/bin/bash
# The library under NCCL's name exports the functions of our table, all of them
# and nothing else, and where NCCL's own header is installed these are the ones
# that it declares. Usage: check_nccl_exports.sh LIBRARY [NCCL_HEADER]
set -eu
sources=$(cd "$(dirname "$0")/../src/frontends/nccl" && pwd)

# Every function has a second name, except those of the header for device code.
table=$(sed -n '/define NCCL_FUNCTIONS/,/^$/p' "$sources/functions.h" | grep -oE '\bnccl[A-Z][A-Za-z0-9]+, *(\(|\\)|\bnccl[A-Z][A-Za-z0-9]+,' |
    grep -oE 'nccl[A-Z][A-Za-z0-9]+' | grep -v '^ncclResult_t$' | LC_ALL=C sort -u)
device=$(sed -n '/define NCCL_DEVICE_FUNCTIONS/,/^$/p' "$sources/functions.h" | grep -oE 'ncclResult_t, nccl[A-Za-z]+' |
    sed 's/.*, //' | LC_ALL=C sort -u)
named() { sed 's/.*/&\np&/'; }
exported=$(nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u)

[ "$(wc -l <<<"$table")" -gt 35 ] && [ "$(wc -l <<<"$device")" = 2 ] || { echo "functions.h could not be read"; exit 1; }
if ! diff <({ named <<<"$table"; echo "$device"; } | LC_ALL=C sort -u) <(echo "$exported"); then
    echo "'<' is in functions.h but not exported; '>' is exported but not there"
    exit 1
fi
if nm -D --defined-only "$1" | grep -q '@'; then
    echo "symbols have versions, but programs ask for them without"
    exit 1
fi
readelf -d "$1" | grep -q 'SONAME.*\[libnccl\.so\.2\]' || { echo "the soname is not libnccl.so.2"; exit 1; }
if readelf -d "$1" | grep -q STATIC_TLS; then
    echo "the library needs static thread-local storage, so that dlopen of it can fail"
    exit 1
fi

if [ -n "${2:-}" ]; then
    declared=$("${CC:-cc}" -fpreprocessed -dD -E -P "$2" 2>/dev/null | grep -oE '\bp?nccl[A-Z][A-Za-z0-9]+ *\(' | tr -d ' (' |
        LC_ALL=C sort -u)
    if ! diff <(echo "$declared") <(named <<<"$table" | LC_ALL=C sort -u); then
        echo "'<' is declared in $2 but not here; '>' is not declared there"
        exit 1
    fi
fi
