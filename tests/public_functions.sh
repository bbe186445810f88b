#!/bin/bash
# Prints the names of the functions that HEADER declares, sorted.
set -eu
"${CC:-cc}" -fpreprocessed -dD -E -P "$1" 2>/dev/null | grep -oE '\bpolypath_[a-z0-9_]+ *\(' | tr -d ' (' | LC_ALL=C sort -u
