#!/usr/bin/env python3
"""Turns what bench/peers.sh measured into tables, statements and pictures.

  peers_table.py POINTS.json [--out DIR]

Prints markdown. Points are compared only with points that were taken in the same state of the machine: the flag
latency before and after both said near, or both far. Points between, or with a change while they ran, count nowhere.
With --out, DIR/peers.RANKS.svg shows bus bandwidth over size.
"""
import argparse
import collections
import json
import shutil
import statistics
import subprocess
import sys

POLYPATH, REGISTERED = "polypath", "polypath-registered"
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv", "pingpong", "barrier"]
STATES = ["near", "far", "smt", "unknown"]  # those in which points are compared; not: between, mixed
OUT_OF_THE_RACE = 10  # a peer that never comes nearer to the best one than this need not have been seen in each state
KIB, MIB = 1 << 10, 1 << 20


def read_records(name):
    with open(name, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def bus_factor(op, ranks):
    """busbw / algbw, as nccl-tests defines them."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1


# ----------------------------------------------------------------- computation


class Figure:
    """One candidate at one point in one state: the median over rounds, and how far they lie apart."""

    def __init__(self, times):
        self.median, self.least, self.most, self.rounds = statistics.median(times), min(times), max(times), len(times)


class Row:
    """One point in one state, over all candidates; `wanted`: each peer's least time there in whatever state."""

    def __init__(self, ranks, op, size, state, actual, figures, flags, wanted):
        self.ranks, self.op, self.size, self.state, self.actual = ranks, op, size, state, actual
        self.figures, self.flags = figures, flags
        peers = {name: figure for name, figure in figures.items() if not name.startswith(POLYPATH)}
        self.best = min(peers, key=lambda name: peers[name].median, default=None)
        # A peer that was measured in other states only may be the best one: then nothing is concluded.
        limit = OUT_OF_THE_RACE * peers[self.best].median if peers else float("inf")
        self.missing = sorted(name for name, least in wanted.items() if name not in figures and least < limit)

    def ratio(self, candidate=POLYPATH):
        """Its time over the best peer's: below 1 is faster. None where either is not there."""
        if candidate not in self.figures or self.best is None:
            return None
        return self.figures[candidate].median / self.figures[self.best].median

    def counts(self, candidate=POLYPATH):
        return self.ratio(candidate) is not None and not self.missing

    def algbw(self, name):
        return self.actual / self.figures[name].median * 1e-3


def make_rows(records):
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    actual, flags, peers = {}, collections.defaultdict(list), collections.defaultdict(dict)
    for record in records:
        if record["kind"] != "point":
            continue
        point = (record["ranks"], record["op"], record["bytes"])
        actual[point] = record["actual"]
        time, name = record["time_us"]["median"], record["candidate"]
        if not name.startswith(POLYPATH):
            peers[point][name] = min(time, peers[point].get(name, time))
        if record["state"] in STATES:
            key = (*point, record["state"])
            times[key][name].append(time)
            flags[key] += [record["flag_before_us"], record["flag_after_us"]]
    rows = [Row(*key, actual[key[:3]], {name: Figure(list_) for name, list_ in candidates.items()}, flags[key],
                peers[key[:3]]) for key, candidates in times.items()]
    return sorted(rows, key=lambda row: (row.ranks, OPS.index(row.op), row.size, STATES.index(row.state)))


def memory_rate(records, ranks, what):
    rates = [record[what] for record in records if record["kind"] == "memory" and record["ranks"] == ranks]
    return statistics.median(rates) if rates else None


# ------------------------------------------------------------------ statements


class Check:
    """A bound on the ratios of some rows: on the worst of them, or on their median."""

    def __init__(self, text, ranks, ops, most, sizes=(0, 1 << 62), candidate=POLYPATH, median=False):
        self.text, self.ranks, self.ops, self.most = text, ranks, ops, most
        self.sizes, self.candidate, self.median = sizes, candidate, median

    def evaluate(self, rows, state):
        """(met or not or None: not measured, what was found)"""
        mine = [row for row in rows if row.ranks == self.ranks and row.op in self.ops and row.state == state
                and self.sizes[0] <= row.size <= self.sizes[1]]
        counted = [row for row in mine if row.counts(self.candidate)]
        if not counted:
            return None, "not measured"
        ratios = [row.ratio(self.candidate) for row in counted]
        worst = max(counted, key=lambda row: row.ratio(self.candidate))
        found = statistics.median(ratios) if self.median else max(ratios)
        text = f"{found:.2f} of the best peer's time, {1 / found:.2f} times its speed"
        if not self.median:
            text += f" ({worst.best}, {size_text(worst.size)})"
        if len(counted) > 1 or len(counted) < len(mine):
            text += f"; {len(counted)} of {len(mine)} sizes"
        return found <= self.most, text


def checks_of_operations():
    for op in ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"):
        yield Check(f"2 ranks, {op}: at no size slower than the best peer", 2, [op], 1)
        yield Check(f"2 ranks, {op}: at least 1.4 times the best peer's speed over the median of the sizes", 2, [op],
                    1 / 1.4, median=True)
        if op == "reduce_scatter":
            yield Check("2 ranks, reduce_scatter: at least 2 times from 8 MiB on", 2, [op], 1 / 2,
                        (8 * MIB, 1 << 62))
        yield Check(f"4 ranks, {op}: at no size slower than the best peer", 4, [op], 1)


CHECKS = [
    Check("2 ranks, all_reduce of 8 B: at most 0.45 of the best peer's time", 2, ["all_reduce"], 0.45, (8, 8)),
    Check("2 ranks, all_reduce of 8 KiB: at most 0.6", 2, ["all_reduce"], 0.6, (8 * KIB, 8 * KIB)),
    Check("2 ranks, all_reduce of 64 KiB to 1 MiB: at least 2.2 times the bus bandwidth", 2, ["all_reduce"], 1 / 2.2,
          (64 * KIB, MIB)),
    Check("2 ranks, all_reduce of 8 to 128 MiB: at least 2.2 times", 2, ["all_reduce"], 1 / 2.2, (8 * MIB, 128 * MIB)),
    Check("2 ranks, all_reduce of 8 to 128 MiB, registered buffers: at least 2.6 times", 2, ["all_reduce"], 1 / 2.6,
          (8 * MIB, 128 * MIB), REGISTERED),
    *checks_of_operations(),
    Check("4 ranks, all_reduce of 8 B: at most 0.45 of the best peer's time", 4, ["all_reduce"], 0.45, (8, 8)),
    Check("4 ranks, all_reduce to 4 KiB: at most half", 4, ["all_reduce"], 0.5, (0, 4 * KIB)),
    Check("4 ranks, all_reduce above 4 KiB: never slower", 4, ["all_reduce"], 1, (4 * KIB + 1, 1 << 62)),
]


def check_crowd(rows, state):
    """16 ranks: an absolute bound."""
    times = [row.figures[POLYPATH].median for row in rows if (row.ranks, row.op, row.size, row.state) ==
             (16, "all_reduce", 8, state) and POLYPATH in row.figures]
    return (times[0] <= 40, f"{times[0]:.1f} us") if times else (None, "not measured")


def check_limit(records, rows, state):
    """Two ranks cannot reduce faster than two threads read both inputs and write both outputs."""
    limit = memory_rate(records, 2, "sum_gbps")
    shares = [row.algbw(REGISTERED) / limit for row in rows
              if limit and (row.ranks, row.op, row.state) == (2, "all_reduce", state) and row.size >= 8 * MIB
              and REGISTERED in row.figures]
    if not shares:
        return None, "not measured"
    return min(shares) >= 0.85, f"{min(shares):.2f} at worst, of {limit:.1f} GB/s; {len(shares)} sizes"


def statements(records, rows):
    """(text, state, met, found) of all that must hold, in each state that was seen."""
    states = [state for state in STATES if any(row.state == state for row in rows)]
    special = [("16 ranks, all_reduce of 8 B: at most 40 us", lambda state: check_crowd(rows, state)),
               ("2 ranks, all_reduce from 8 MiB on, registered buffers: at least 0.85 of the memory's limit",
                lambda state: check_limit(records, rows, state))]
    evaluations = [(check.text, lambda state, check=check: check.evaluate(rows, state)) for check in CHECKS] + special
    for text, evaluate in evaluations:
        results = [(state, *evaluate(state)) for state in states]
        seen = [result for result in results if result[1] is not None]
        if not seen:
            yield text, "-", None, "not measured"
        for state, met, found in seen:
            yield text, state, met, found


# ------------------------------------------------------------------------ text


def size_text(size):
    for unit, scale in (("MiB", MIB), ("KiB", KIB)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def number(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def spread_text(figure):
    return f"{number(figure.least)}..{number(figure.most)} [{figure.rounds}]"


def print_table(ranks, op, rows):
    print(f"\n### {op}, {ranks} ranks\n")
    print("| size | state (flag, us) | polypath, us | min..max [rounds] | GB/s | best peer | its us | min..max [rounds] |"
          " its GB/s | ratio | not in this state |")
    print("| ---: | --- | ---: | --- | ---: | --- | ---: | --- | ---: | ---: | --- |")
    for row in rows:
        cells = [size_text(row.size), f"{row.state} ({min(row.flags):.2f}..{max(row.flags):.2f})"]
        for name in (POLYPATH, row.best):
            figure = row.figures.get(name)
            if name != POLYPATH:
                cells.append(name or "-")
            cells += [number(figure.median), spread_text(figure), f"{row.algbw(name):.3f}"] if figure else ["-"] * 3
        ratio = row.ratio()
        cells.append("-" if ratio is None else f"{ratio:.2f}" if row.counts() else f"({ratio:.2f})")
        cells.append(", ".join(row.missing) or "")
        print("| " + " | ".join(cells) + " |")
        if REGISTERED in row.figures:
            figure = row.figures[REGISTERED]
            ratio = row.ratio(REGISTERED)
            print(f"| | registered buffers | {number(figure.median)} | {spread_text(figure)} |"
                  f" {row.algbw(REGISTERED):.3f} | | | | | {'-' if ratio is None else f'{ratio:.2f}'} | |")


def summary_lines(rows):
    for state in STATES:
        counted = [row for row in rows if row.state == state and row.counts()]
        if counted:
            worst = max(counted, key=lambda row: row.ratio())
            yield (f"{state}: median ratio {statistics.median(row.ratio() for row in counted):.2f}, worst"
                   f" {worst.ratio():.2f} ({size_text(worst.size)}, {worst.best}), over {len(counted)} sizes")


def print_intro(records):
    run = next(record for record in records if record["kind"] == "run")
    points = [record for record in records if record["kind"] == "point"]
    print("## Polypath and its peers, host memory\n")
    print(f"{run['time']}, {run['machine']}, kernel {run['kernel']}, {run['cores']} cores. float32, sum, out of place.")
    print("Times are medians over rounds of medians over blocks, by the slowest rank's clock; sizes and GB/s (algbw) as"
          " nccl-tests counts them.")
    print("Ratio: Polypath's time over the best peer's, below 1 is faster; in brackets where a peer is missing in that"
          " state, and then it counts nowhere.")
    left_out = sum(point["state"] not in STATES for point in points)
    print(f"{len(points)} points, {sum(point['wrong'] > 0 for point in points)} with wrong data; {left_out} between two"
          " states of the machine, left out.")
    for ranks in sorted({record["ranks"] for record in records if record["kind"] == "memory"}):
        print(f"Memory beside {ranks} ranks: two threads copy {memory_rate(records, ranks, 'copy_gbps'):.1f} GB/s and sum"
              f" into two places {memory_rate(records, ranks, 'sum_gbps'):.1f} GB/s.")
    for record in records:
        if record["kind"] == "missing":
            print(f"Not measured: {record['candidate']}: {record['reason']}.")
        elif record["kind"] == "lost":
            print(f"Given up: {record['candidate']} with {record['ranks']} ranks: {record['reason']}")


def print_statements(records, rows):
    print("\n### What must hold\n")
    print("| | state | | found |\n| --- | --- | --- | --- |")
    for text, state, met, found in statements(records, rows):
        print(f"| {text} | {state} | {'-' if met is None else 'met' if met else '**not met**'} | {found} |")


def print_all(records, rows):
    print_intro(records)
    for ranks in sorted({row.ranks for row in rows}):
        for op in OPS:
            mine = [row for row in rows if (row.ranks, row.op) == (ranks, op)]
            if mine:
                print_table(ranks, op, mine)
                for line in summary_lines(mine):
                    print(f"\n{line}")
    print_statements(records, rows)


# -------------------------------------------------------------------- pictures

COLOURS = {POLYPATH: "#d62728", REGISTERED: "#ff7f0e", "ompi": "#1f77b4", "ompi-sm": "#17becf", "ompi-ucx": "#2ca02c",
           "ompi-nocma": "#9467bd", "mpich": "#7f7f7f", "mpich-rg": "#bcbd22", "ucc": "#8c564b", "gloo": "#e377c2"}


def plot_script(ranks, rows, file, terminal):
    """A panel for each operation and one for the key; lines of the state in which most points were taken."""
    rows = [row for row in rows if row.ranks == ranks and row.op != "barrier"]
    state = collections.Counter(row.state for row in rows).most_common(1)[0][0]
    rows = [row for row in rows if row.state == state]
    ops = [op for op in OPS if any(row.op == op for row in rows)]
    names = [name for name in COLOURS if any(name in row.figures for row in rows)]
    panels = len(ops) + 1
    columns = 1 if panels <= 2 else 2
    lines = -(-panels // columns)
    sizes = [row.size for row in rows]
    tics = [8 * 16**i for i in range(8) if 8 * 16**i <= max(sizes) * 16]
    labels = ", ".join(f'"{size_text(tic)}" {tic}' for tic in tics)
    script = [f"set terminal {terminal} size {520 * columns},{300 * lines + 40}", f"set output '{file}'",
              f"set multiplot layout {lines},{columns} title 'Bus bandwidth, {ranks} ranks, state: {state}'",
              "set logscale x 2", "set logscale y", f"set xrange [{min(sizes) / 1.5}:{max(sizes) * 1.5}]",
              "set format y '%g'", f"set xtics ({labels})", "set grid", "set ylabel 'GB/s'", "unset key"]
    styles = {name: f"lc rgb '{COLOURS[name]}' pt {5 if name == POLYPATH else 7} ps 0.5 lw"
                    f" {3.5 if name.startswith(POLYPATH) else 1.5}" for name in names}
    for index, op in enumerate(ops):
        for name in names:
            script.append(f"$d{index}_{names.index(name)} << END")
            script += [f"{row.size} {row.algbw(name) * bus_factor(op, ranks)}" for row in rows
                       if row.op == op and name in row.figures] or ["NaN NaN"]
            script.append("END")
        script.append(f"set title '{op.replace('_', ' ')}'")
        # Polypath is drawn last, on top.
        script.append("plot " + ", ".join(f"$d{index}_{names.index(name)} with linespoints {styles[name]}"
                                          for name in reversed(names)))
    script += ["unset logscale", "set xrange [0:1]", "set yrange [0:1]", "unset tics", "unset border", "unset grid",
               "unset title", "unset ylabel", "set key center center samplen 4 spacing 1.4"]
    script.append("plot " + ", ".join(f"NaN with linespoints {styles[name]} title '{name}'" for name in names))
    return "\n".join(script + ["unset multiplot"]) + "\n"


def plot(rows, folder, terminal="svg", suffix="svg"):
    if not shutil.which("gnuplot"):
        print("\nNo picture: gnuplot is not there (package gnuplot-nox).")
        return
    for ranks in sorted({row.ranks for row in rows}):
        sizes = {row.size for row in rows if row.ranks == ranks and row.op != "barrier"}
        if len(sizes) > 1:
            file = f"{folder}/peers.{ranks}.{suffix}"
            subprocess.run(["gnuplot"], input=plot_script(ranks, rows, file, terminal), text=True, check=True)
            print(f"\nPicture: {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points")
    parser.add_argument("--out")
    parser.add_argument("--png", action="store_true", help="pictures as PNG")
    options = parser.parse_args()
    records = read_records(options.points)
    rows = make_rows(records)
    print_all(records, rows)
    if options.out and rows:
        plot(rows, options.out, *(("pngcairo", "png") if options.png else ()))
    return 1 if any(record["kind"] == "point" and record["wrong"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
