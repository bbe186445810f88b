#!/usr/bin/env python3
"""Turns the JSON rows that bench/lab.sh collects into tables.

  lab_table.py sum    LINKS RANKS FILE              ratio of all paths to the sum of the single ones
  lab_table.py sizes  LINKS RANKS FILE              ratio of all paths to the best single one, by size
  lab_table.py cpu    LINKS RANKS FILE              what a call takes of the cores, and the least time possible
  lab_table.py adapt  LINKS RANKS FILE HALVED BACK  calls until the rate has followed a change
  lab_table.py stamp                                copies standard input, adding the time of arrival to each row
"""
import json
import os
import statistics
import sys
import time


def rows(name):
    with open(name) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def by_point(name):
    points = {}
    for row in rows(name):
        points.setdefault((row["collective"], row["bytes"]), []).append(row)
    return points


def share_text(row):
    return " ".join(f"{name} {100 * share:.0f}%" for name, share in row["shares"].items())


def split(point):
    """The single paths' rows, and the row of all together."""
    return [r for r in point if "," not in r["paths"]], [r for r in point if "," in r["paths"]][0]


def print_sum(links, ranks, name):
    print(f"\nLinks {links.replace(' ', ' + ')}, {ranks} ranks on 2 hosts; medians, p90 of the time in brackets\n")
    print("| collective | each alone, GB/s | all, GB/s | of the sum | of the best | shares | wrong |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (collective, _), point in by_point(name).items():
        single, together = split(point)
        alone = [r["algbw_gbps"] for r in single]
        spread = together["time_us"]["p90"] / together["time_us"]["median"]
        wrong = sum(r["wrong"] for r in point)
        print(f"| {collective} | {' '.join(f'{a:.3f}' for a in alone)} | {together['algbw_gbps']:.3f} [x{spread:.2f}] |"
              f" {together['algbw_gbps'] / sum(alone):.3f} | {together['algbw_gbps'] / max(alone):.2f} |"
              f" {share_text(together)} | {wrong} |")


def print_sizes(links, ranks, name):
    print(f"\nLinks {links.replace(' ', ' + ')}, {ranks} ranks on 2 hosts; microseconds, median (p90)\n")
    print("| collective | bytes | best single | all | best / all | shares | wrong |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (collective, size), point in by_point(name).items():
        single, together = split(point)
        best = min(single, key=lambda r: r["time_us"]["median"])
        print(f"| {collective} | {size} | {best['paths']} {best['time_us']['median']:.1f} ({best['time_us']['p90']:.1f}) |"
              f" {together['time_us']['median']:.1f} ({together['time_us']['p90']:.1f}) |"
              f" {best['time_us']['median'] / together['time_us']['median']:.3f} | {share_text(together)} |"
              f" {sum(r['wrong'] for r in point)} |")


PAYLOAD = 0.956  # of the line rate at an MTU of 1500


def links_ms(links, collective, ranks, size):
    """The time in which the links can carry what the two hosts must tell each other, headers counted."""
    gbits = sum(float(link.split("gbit")[0]) for link in links.split()) * PAYLOAD
    one_way = {"all_gather": 0.5, "reduce_scatter": 0.5}.get(collective, 1)
    return size * one_way * 8 / (gbits * 1e9) * 1e3


def print_cpu(links, ranks, name):
    print(f"\nLinks {links.replace(' ', ' + ')}, {ranks} ranks on 2 hosts, {os.cpu_count()} cores; milliseconds a call\n")
    print("| collective | takes | links need | cores work | they need at least | cores busy | of what both allow |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    points = rows(name)
    for short, long in zip(points[::2], points[1::2]):
        row, extra = long["row"], long["seconds"] - short["seconds"]
        took = row["time_us"]["median"] / 1e3
        work = 10 * (long["worked"] - short["worked"]) / (extra * 1e3 / took)
        links_need, cores_need = links_ms(links, row["collective"], int(ranks), row["bytes"]), work / os.cpu_count()
        print(f"| {row['collective']} | {took:.1f} | {links_need:.1f} | {work:.0f} | {cores_need:.1f} |"
              f" {cores_need / took:.2f} | {max(links_need, cores_need) / took:.2f} |")


def follow(calls, change, until, label, gbits):
    """Calls after `change` until the rate is 0.9 of the new sum of the links."""
    total = PAYLOAD * gbits / 8
    after = [r for r in calls if change <= r["arrived"] - r["time_us"] * 1e-6 and r["arrived"] < until]
    settled = statistics.median(r["algbw_gbps"] for r in after)
    needed = next((i for i, r in enumerate(after) if r["algbw_gbps"] >= 0.9 * total), None)
    first = after[0]["algbw_gbps"] if after else 0
    print(f"| {label} | {total:.3f} | {settled:.3f} | {first:.3f} | {'never' if needed is None else needed + 1} |"
          f" {len(after)} |")


def print_adapt(links, ranks, name, halved, restored):
    calls = rows(name)
    times = [float(open(f).read()) for f in (halved, restored)]
    print(f"\nLinks {links.replace(' ', ' + ')}, {ranks} ranks on 2 hosts, AllReduce of 64 MiB\n")
    print("| | sum of the links, GB/s | median | first call after | call that reaches 0.9 of the sum | calls seen |")
    print("| --- | --- | --- | --- | --- | --- |")
    before = [r for r in calls if r["arrived"] < times[0]]
    print(f"| before | {PAYLOAD * 5 / 8:.3f} | {statistics.median(r['algbw_gbps'] for r in before[5:]):.3f} | | |"
          f" {len(before)} |")
    follow(calls, times[0], times[1], "halved", 3)
    follow(calls, times[1], float("inf"), "restored", 5)
    steady = before[len(before) // 2:]
    for path in steady[0]["shares"]:
        shares = sorted(100 * r["shares"][path] for r in steady)
        tenth = len(shares) // 20  # of the calls, at either end
        print(f"\nsteady share of {path}: {min(shares):.1f} to {max(shares):.1f} % over {len(shares)} calls,"
              f" nine tenths of them {shares[tenth]:.1f} to {shares[-1 - tenth]:.1f} %"
              f" (balanced share moves: {steady[-1]['share_changes'] - steady[0]['share_changes']})", end="")
    print()


def stamp():
    for line in sys.stdin:
        row = json.loads(line)
        row["arrived"] = time.time()
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    what = {"sum": print_sum, "sizes": print_sizes, "cpu": print_cpu, "adapt": print_adapt, "stamp": stamp}
    what[sys.argv[1]](*sys.argv[2:])
