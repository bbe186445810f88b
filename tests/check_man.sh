#!/bin/bash
# Every public function has a manual page whose synopsis is the header's
# declaration, no page describes anything else, and every page is sound.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0
fail() {
    echo "$*"
    status=1
}

functions=$(for header in include/polypath/*.h; do tests/public_functions.sh $header; done)
for function in $functions; do
    [ -f "man/$function.3" ] || fail "man/$function.3 is missing"
done
for page in man/*.3; do
    name=$(basename "$page" .3)
    [ "$name" = polypath ] || grep -qx "$name" <<<"$functions" || fail "$page: no such function in the header"
    alias=$(sed -n 's/^\.so man3\///p' "$page")
    [ -z "$alias" ] || grep -q "^\.BI.*\b$name(" "man/$alias" || fail "$page: man/$alias does not describe it"
done

prototypes() {
    tr -d '" \n' | grep -oE '(constchar\*|polypath_result_t|size_t|int)polypath_[a-z0-9_]+\([^)]*\);' | LC_ALL=C sort
}
cc -fpreprocessed -dD -E -P include/polypath/polypath.h 2>/dev/null >/dev/null || fail "the header could not be read"
if ! diff <(for header in include/polypath/*.h; do cc -fpreprocessed -dD -E -P $header 2>/dev/null; done | prototypes) \
    <(sed -n 's/^\.BI //p' man/polypath*.3 | prototypes); then
    fail "'<' is declared in the header, '>' is in a manual page"
fi

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
