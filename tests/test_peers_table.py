#!/usr/bin/env python3
"""The tables of bench/peers.sh: ratios are formed within one state of the machine, and by the right arithmetic."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import peers_drive as drive  # noqa: E402
import peers_table as table  # noqa: E402


def point(candidate, time_us, state="near", op="all_reduce", size=8, ranks=2, wrong=0, number=0):
    flag = {"near": 0.08, "far": 0.3}.get(state, 0.17)
    return {"kind": "point", "candidate": candidate, "round": number, "flag_before_us": flag, "flag_after_us": flag,
            "state": state, "op": op, "bytes": size, "actual": size, "ranks": ranks, "blocks": 5, "operations": 20,
            "wrong": wrong, "time_us": {"min": time_us, "median": time_us, "p90": time_us, "max": time_us}}


def statement(records, text):
    rows = table.make_rows(records)
    return [result[1:] for result in table.statements(records, rows) if result[0].startswith(text)]


class Ratios(unittest.TestCase):
    def test_is_polypath_over_best_peer_by_medians_of_rounds(self):
        records = [point("polypath", t) for t in (0.5, 0.2, 0.3)]
        records += [point("ompi", t) for t in (0.9, 0.1, 1.0)] + [point("mpich", t) for t in (0.6, 0.7, 0.5)]
        [row] = table.make_rows(records)
        self.assertEqual(row.best, "mpich")
        self.assertAlmostEqual(row.ratio(), 0.3 / 0.6)
        figure = row.figures["polypath"]
        self.assertEqual((figure.least, figure.most, figure.rounds), (0.2, 0.5, 3))

    def test_never_mixes_states(self):
        records = [point("polypath", 0.1, "near"), point("ompi", 0.4, "near"),
                   point("polypath", 0.6, "far"), point("ompi", 0.8, "far"),
                   point("polypath", 9.0, "mixed"), point("ompi", 0.01, "between")]
        near, far = table.make_rows(records)
        self.assertEqual((near.state, far.state), ("near", "far"))
        self.assertAlmostEqual(near.ratio(), 0.25)
        self.assertAlmostEqual(far.ratio(), 0.75)

    def test_does_not_count_where_a_peer_is_missing_in_that_state(self):
        records = [point("polypath", 0.1), point("ompi", 0.4), point("mpich", 0.3, "far")]
        row = table.make_rows(records)[0]
        self.assertEqual(row.missing, ["mpich"])
        self.assertFalse(row.counts())
        self.assertEqual(list(table.summary_lines([row])), [])

    def test_counts_without_a_peer_that_is_out_of_the_race(self):
        records = [point("polypath", 0.1), point("ompi", 0.4), point("mpich", 8000, "mixed")]
        row = table.make_rows(records)[0]
        self.assertEqual(row.missing, [])
        self.assertTrue(row.counts())

    def test_registered_buffers_are_no_peer(self):
        records = [point("polypath", 0.4), point("polypath-registered", 0.1), point("ompi", 0.8)]
        [row] = table.make_rows(records)
        self.assertEqual(row.best, "ompi")
        self.assertAlmostEqual(row.ratio("polypath-registered"), 0.125)

    def test_alone_has_no_ratio(self):
        [row] = table.make_rows([point("polypath", 0.4)])
        self.assertIsNone(row.ratio())


class Bandwidths(unittest.TestCase):
    def test_are_those_of_nccl_tests(self):
        [row] = table.make_rows([point("polypath", 1000, size=8 << 20)])
        self.assertAlmostEqual(row.algbw("polypath"), 8.388608)
        self.assertEqual(table.bus_factor("all_reduce", 4), 1.5)
        self.assertEqual(table.bus_factor("all_gather", 4), 0.75)
        self.assertEqual(table.bus_factor("broadcast", 4), 1)


class Summary(unittest.TestCase):
    def test_gives_median_and_worst_with_size_and_peer(self):
        records = []
        for size, time in ((8, 0.2), (32, 0.5), (128, 1.5)):
            records += [point("polypath", time, size=size), point("ompi", 1, size=size)]
        [line] = table.summary_lines(table.make_rows(records))
        self.assertEqual(line, "near: median ratio 0.50, worst 1.50 (128 B, ompi), over 3 sizes")


class Statements(unittest.TestCase):
    TEXT = "2 ranks, all_reduce of 8 B"

    def test_met_and_not_met_in_each_state(self):
        records = [point("polypath", 0.45), point("ompi", 1.0),
                   point("polypath", 0.46, "far"), point("ompi", 1.0, "far")]
        (near, met, found), (far, missed, _) = statement(records, self.TEXT)
        self.assertEqual((near, met, far, missed), ("near", True, "far", False))
        self.assertIn("0.45", found)
        self.assertIn("ompi", found)

    def test_not_measured_is_neither(self):
        self.assertEqual(statement([point("polypath", 0.4)], self.TEXT), [("-", None, "not measured")])

    def test_bus_bandwidth_bound_is_of_the_worst_size(self):
        records = []
        for size, time in ((64 << 10, 1.0), (1 << 20, 2.0)):
            records += [point("polypath", time, size=size), point("ompi", 4.0, size=size)]
        [(_, met, found)] = statement(records, "2 ranks, all_reduce of 64 KiB")
        self.assertFalse(met)
        self.assertIn("2.00 times its speed", found)

    def test_median_bound(self):
        records = []
        for size, time in ((8, 0.9), (32, 0.5), (128, 0.5)):
            records += [point("polypath", time, op="broadcast", size=size),
                        point("ompi", 1, op="broadcast", size=size)]
        [(_, met, _)] = statement(records, "2 ranks, broadcast: at least 1.4 times")
        self.assertTrue(met)

    def test_sixteen_ranks_are_held_to_an_absolute_time(self):
        for time, expected in ((40.0, True), (41.0, False)):
            [(_, met, _)] = statement([point("polypath", time, ranks=16)], "16 ranks")
            self.assertEqual(met, expected)

    def test_registered_buffers_are_held_to_the_memory_rate_of_the_run(self):
        memory = {"kind": "memory", "ranks": 2, "round": 0, "copy_gbps": 12.0, "sum_gbps": 10.0}
        for time, expected in ((900, True), (1100, False)):
            records = [memory, point("polypath-registered", time, size=8 << 20)]
            [(_, met, _)] = statement(records, "2 ranks, all_reduce from 8 MiB on")
            self.assertEqual(met, expected)


class Output(unittest.TestCase):
    def print(self, records):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file, io.StringIO() as text:
            run = {"kind": "run", "time": "now", "machine": "m", "kernel": "k", "cores": 2}
            file.write("\n".join(table.json.dumps(record) for record in [run, *records]))
            file.flush()
            with contextlib.redirect_stdout(text):
                sys.argv = ["peers_table.py", file.name]
                status = table.main()
            return status, text.getvalue()

    def test_table_holds_the_ratio(self):
        status, text = self.print([point("polypath", 0.25), point("ompi", 1.0)])
        self.assertEqual(status, 0)
        self.assertIn("| 8 B | near (0.08..0.08) | 0.25 | 0.25..0.25 [1] | 0.032 | ompi | 1.00 |", text)
        self.assertIn("| 0.25 |  |", text)

    def test_wrong_data_is_said_and_fails(self):
        status, text = self.print([point("polypath", 0.25, wrong=3)])
        self.assertEqual(status, 1)
        self.assertIn("1 with wrong data", text)


class Driver(unittest.TestCase):
    def test_states_of_the_flag(self):
        states = [drive.state_of(flag) for flag in (-1, 0.03, 0.08, 0.11, 0.3)]
        self.assertEqual(states, ["unknown", "smt", "near", "between", "far"])

    def test_sizes_with_units(self):
        self.assertEqual([drive.parse_bytes(text) for text in ("8", "64K", "16M")], [8, 65536, 16 << 20])
        self.assertEqual((drive.SIZES[0], drive.SIZES[-2], drive.SIZES[-1]), (8, 128 << 20, 256 << 20))


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    # The two lines by which scripts/test counts, as cmocka prints them.
    print(f"[  PASSED  ] {result.testsRun - failed} test(s).")
    if failed:
        print(f"[  FAILED  ] peers_table: {failed} test(s), listed below:")
    sys.exit(failed > 0)
