#!/usr/bin/env python3
"""Turns what bench/profile.sh collects into tables.

  profile_table.py instructions COLLECTIVE SIZE FEW MANY BLOCKS   two callgrind files; calls that lie between them
  profile_table.py phases       COLLECTIVE SIZE REPORT            what perf report says, by kind of work
"""
import collections
import re
import subprocess
import sys

OPERATIONS = {"8": 20, "8K": 20, "64K": 8, "512K": 4, "1M": 1}  # of a block of polypath bench


def by_function(name):
    text = subprocess.run(["callgrind_annotate", "--threshold=100", name], capture_output=True, text=True,
                          check=True).stdout
    counts = collections.Counter()
    for line in text.splitlines():
        found = re.match(r"\s*([\d,]+) \([^)]*\)\s+\S*?:(\S+)", line)
        if found:
            counts[found[2].split("'")[0]] += int(found[1].replace(",", ""))
    return counts


def print_instructions(collective, size, few, many, blocks):
    first, second = by_function(few), by_function(many)
    calls = int(blocks) * OPERATIONS[size]
    extra = {name: (second[name] - first[name]) / calls for name in second}
    total = sum(extra.values())
    print(f"\n{collective} {size}: {total:.0f} a call")
    for name, count in sorted(extra.items(), key=lambda item: -item[1])[:8]:
        if count >= 0.01 * total:
            print(f"    {count:9.0f}  {name}")


KINDS = [("reducing", r"_reduce|reduce_"), ("copying", r"copy_|memcpy|memmove|rep_movs"),
         ("waiting", r"advance|peek|pause|idle|is_full|is_free|gathered|progress|clock|sched_yield|vdso|bell|try"),
         ("kernel", r"^\[k\]")]


def print_phases(collective, size, report):
    shares = collections.Counter()
    with open(report) as file:
        for line in file:
            found = re.match(r"\s*([\d.]+)%\s+(\S+)\s+(\[[.k]\]) (.*)", line)
            if not found:
                continue
            share, where, name = float(found[1]), found[3], found[4].strip()
            text = f"{where} {name}" if where == "[k]" else name
            kind = next((kind for kind, pattern in KINDS if re.search(pattern, text)), "other")
            shares[kind] += share
    print(f"{collective} {size}: " + ", ".join(f"{kind} {share:.0f} %" for kind, share in shares.most_common()))


if __name__ == "__main__":
    {"instructions": print_instructions, "phases": print_phases}[sys.argv[1]](*sys.argv[2:])
