#!/bin/bash
# The shared library exports the functions that the public headers declare,
# all of them and nothing else. Usage: check_exports.sh LIBRARY
set -eu
declared=$(for header in "$(dirname "$0")"/../include/polypath/*.h; do
    "$(dirname "$0")/public_functions.sh" "$header"
done | LC_ALL=C sort -u)
exported=$(nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u)

[ "$(wc -l <<<"$declared")" -gt 40 ] || { echo "the headers could not be read"; exit 1; }
if ! diff <(echo "$declared") <(echo "$exported"); then
    echo "'<' is declared in a header but not exported; '>' is exported but not declared"
    exit 1
fi

# Programs and languages load it at run time: it must not ask for static thread-local storage.
if readelf -d "$1" | grep -q STATIC_TLS; then
    echo "the library needs static thread-local storage, so that dlopen of it can fail"
    exit 1
fi
