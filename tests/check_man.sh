#!/bin/bash
# Every public function and command has a manual page, every page is sound, and
# no page describes a function that does not exist.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
fail() {
    echo "$*"
    status=1
}

functions=$(tests/public_functions.sh include/polypath/polypath.h)
for function in $functions; do
    [ -f "man/$function.3" ] || fail "man/$function.3 is missing"
done
for page in man/*.3; do
    name=$(basename "$page" .3)
    [ "$name" = polypath ] || grep -qx "$name" <<<"$functions" || fail "$page: no such function in the header"
    alias=$(sed -n 's/^\.so man3\///p' "$page")
    if [ -n "$alias" ]; then
        [ -f "man/$alias" ] || fail "$page: points to $alias, which is missing"
        grep -q "^\.BI.*\b$name *(" "man/$alias" || fail "man/$alias: has no synopsis of $name"
    fi
done

if ! command -v man >/dev/null; then
    echo "man is not installed; the pages were not rendered"
    [ $status != 0 ] || exit 77
fi
for page in man/*.[13]; do
    grep -q '^\.so ' "$page" && continue
    warnings=$(MANROFFSEQ='' MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "$warnings"
    grep -q '^\.SH NAME' "$page" || fail "$page: has no NAME section"
done
exit $status
