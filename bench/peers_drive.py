#!/usr/bin/env python3
"""Measures Polypath and its peers point by point in turn; started by bench/peers.sh.

Each candidate's job is started once and then waits, blocked on a pipe, until it is asked for a point. One job
runs at a time, so every candidate meets each (operation, size) within seconds of the others, in every round.
The flag latency between two cores is measured before and after each point. Records go to OUT/points.json, one JSON
object a line; bench/peers_table.py reads them.
"""
import argparse
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv", "pingpong", "barrier"]
SIZES = [8 * 4**i for i in range(13)] + [256 << 20]  # 8 B to 128 MiB by four, then 256 MiB
QUICK_SIZES = [8, 8 << 10, 256 << 10, 8 << 20]
POLYPATH = "polypath"
FLAG_SMT_US, FLAG_NEAR_US, FLAG_FAR_US = 0.04, 0.10, 0.12  # of the best of many batches; a mean lies higher
START_SECONDS, ANSWER_SECONDS = 60, 120
SLOW_FACTOR, SLOW_SECONDS = 10, 1.0  # slower than the best by this and longer than that: not asked in later rounds


def parse_bytes(text):
    units = {"K": 10, "M": 20, "G": 30}
    scale = units.get(text[-1:].upper())
    return int(text[:-1]) << scale if scale else int(text)


def list_of(convert):
    return lambda text: [convert(word) for word in text.split(",")]


def read_options():
    parser = argparse.ArgumentParser(prog="bench/peers.sh", description="Compares Polypath with other libraries.")
    parser.add_argument("--full", action="store_true", help="all sizes, more rounds (default: quick, under 3 minutes)")
    parser.add_argument("--ranks", type=list_of(int), help="numbers of ranks (2,4,16)")
    parser.add_argument("--ops", type=list_of(str), help=f"operations, of {','.join(OPS)} (all)")
    parser.add_argument("--sizes", type=list_of(parse_bytes), help="sizes, for example 8,64K,16M"
                        " (full: 8 B to 128 MiB by factor 4, and 256 MiB)")
    parser.add_argument("--rounds", type=int, help="times that every point is measured (quick 3, full 5)")
    parser.add_argument("--seconds", type=float, help="of one point, without checks (quick 0.02, full 0.2)")
    parser.add_argument("--limit", type=float, help="seconds after which no point is begun (quick 140, full none)")
    parser.add_argument("--bind", choices=["auto", "core", "none"], default="auto",
                        help="a core for each rank, or not; auto: where there are cores enough")
    parser.add_argument("--candidates", type=list_of(str), help="only these (all that are found)")
    parser.add_argument("--out", default="build/peers", help="folder of the results (build/peers)")
    parser.add_argument("--build", default="build", help=argparse.SUPPRESS)
    options = parser.parse_args()
    defaults = (5, 0.2, None) if options.full else (3, 0.02, 140)
    for name, value in zip(("rounds", "seconds", "limit"), defaults):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.ranks = options.ranks or [2, 4, 16]
    for op in options.ops or []:
        if op not in OPS:
            parser.error(f"no operation '{op}'; there are {', '.join(OPS)}")
    return options


# ------------------------------------------------------------------ candidates


def open_mpi(*extra, program="peer_mpi.openmpi"):
    """Confined to the loopback interface; --oversubscribe makes idle ranks yield."""
    def command(options, ranks, bound, directory):
        return ["mpirun.openmpi", "--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo",
                "--mca", "btl", "^openib", "--oversubscribe", "-n", str(ranks),
                "--bind-to", "core" if bound else "none", *extra, f"{options.build}/bench/{program}", directory]
    return command


def mpich(options, ranks, bound, directory):
    return ["mpirun.mpich", "-launcher", "fork", "-iface", "lo", "-n", str(ranks),
            *(["-bind-to", "core"] if bound else []), f"{options.build}/bench/peer_mpi.mpich", directory]


def polypath(options, ranks, bound, directory):
    return [f"{options.build}/polypath", "run", "-n", str(ranks), "--bind", "core" if bound else "none", "--no-prefix",
            "--", f"{options.build}/bench/peer_polypath", directory]


def polypath_registered(options, ranks, bound, directory):
    return polypath(options, ranks, bound, directory) + ["registered"]


def gloo(options, ranks, bound, directory):
    return [options.torch_python, "bench/peer_gloo.py", directory, str(ranks)]


RELEASE_GATHER = {f"MPIR_CVAR_{name}_POSIX_INTRA_ALGORITHM": "release_gather"
                  for name in ("ALLREDUCE", "BCAST", "REDUCE", "BARRIER")}
UCX_ANYWHERE = ("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any")

# name, what must be there, command, environment
CANDIDATES = [
    (POLYPATH, "peer_polypath", polypath, {}),
    ("polypath-registered", "peer_polypath", polypath_registered, {}),
    ("ompi", "peer_mpi.openmpi", open_mpi(), {}),
    ("ompi-sm", "peer_mpi.openmpi", open_mpi("--mca", "coll_sm_priority", "100"), {}),
    ("ompi-ucx", "peer_mpi.openmpi", open_mpi(*UCX_ANYWHERE), {}),
    ("ompi-nocma", "peer_mpi.openmpi", open_mpi("--mca", "btl_vader_single_copy_mechanism", "none"), {}),
    ("mpich", "peer_mpi.mpich", mpich, {}),
    ("mpich-rg", "peer_mpi.mpich", mpich, RELEASE_GATHER),
    ("ucc", "peer_ucc", open_mpi("--mca", "pml", "ob1", program="peer_ucc"), {}),
    ("gloo", None, gloo, {"GLOO_SOCKET_IFNAME": "lo"}),
]


def find_torch():
    """A Python whose torch has gloo, or None."""
    test = "import torch.distributed as d, sys; sys.exit(not d.is_available())"
    for python in dict.fromkeys(filter(None, [shutil.which("python3"), "/usr/bin/python3"])):
        if subprocess.run([python, "-c", test], capture_output=True).returncode == 0:
            return python
    return None


def choose_candidates(options):
    """Those that can run here, and why the others cannot."""
    options.torch_python = find_torch()
    chosen, missing = [], {}
    known = [name for name, *_ in CANDIDATES]
    for name in options.candidates or []:
        if name not in known:
            sys.exit(f"bench/peers.sh: no candidate '{name}'; there are {', '.join(known)}")
    for candidate in CANDIDATES:
        name, program = candidate[:2]
        if options.candidates and name not in options.candidates:
            continue
        if program and not os.path.exists(f"{options.build}/bench/{program}"):
            missing[name] = f"{options.build}/bench/{program} is not there"
        elif not program and not options.torch_python:
            missing[name] = "no Python here has torch"
        else:
            chosen.append(candidate)
    return chosen, missing


# ------------------------------------------------------------------------ jobs


class Failed(Exception):
    pass


class Job:
    """One candidate's processes, from start to end. Between two points they wait in a read of their pipe."""

    def __init__(self, options, candidate, ranks, bound, parent):
        name, _, command, environment = candidate
        self.name, self.ranks = name, ranks
        self.directory = os.path.join(parent, f"{name}.{ranks}")
        os.mkdir(self.directory)
        self.orders = [self.pipe(f"orders.{rank}") for rank in range(ranks)]
        self.answers = self.pipe("answers")
        self.pending = b""
        self.command = command(options, ranks, bound, self.directory)
        self.log = open(os.path.join(options.out, f"log.{name}.{ranks}.txt"), "w+b")
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={**os.environ, **environment}, start_new_session=True)

    def pipe(self, name):
        path = os.path.join(self.directory, name)
        os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR)  # both ways, so that opening does not wait for the job

    def last_words(self):
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines()]
        lines = [line for line in lines if any(character.isalnum() for character in line)]
        return lines[-1] if lines else "no message"

    def collect(self, seconds):
        """One answer of each rank; returns rank 0's."""
        deadline, waiting, result = time.monotonic() + seconds, set(range(self.ranks)), None
        while waiting:
            ready, _, _ = select.select([self.answers], [], [], 0.5)
            if ready:
                self.pending += os.read(self.answers, 65536)
                *lines, self.pending = self.pending.split(b"\n")
                for answer in map(json.loads, lines):
                    waiting.discard(answer["rank"])
                    result = answer if answer["rank"] == 0 else result
            elif self.process.poll() is not None:
                raise Failed(f"it ended with status {self.process.returncode}: {self.last_words()}")
            elif time.monotonic() > deadline:
                raise Failed(f"no answer within {seconds} s")
        return result

    def measure(self, op, size, seconds):
        order = f"{op} {size} {seconds}\n".encode()
        for pipe in self.orders:
            os.write(pipe, order)
        return self.collect(ANSWER_SECONDS)

    def dismiss(self):
        """The end of its orders: the processes end by themselves."""
        for pipe in self.orders:
            os.close(pipe)
        self.orders = []

    def end(self, kindly=True):
        self.dismiss()
        for patience, number in ((10 if kindly else 0, None), (5, signal.SIGTERM), (5, signal.SIGKILL)):
            if number:
                try:
                    os.killpg(self.process.pid, number)
                except ProcessLookupError:
                    pass
            try:
                self.process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        os.close(self.answers)
        self.log.close()


class Host:
    """The flag latency and the memory rates; see bench/peer_host.c."""

    def __init__(self, options):
        self.process = subprocess.Popen([f"{options.build}/bench/peer_host"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def flag(self):
        return self.ask("flag")["flag_us"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


# ------------------------------------------------------------------------- run


def state_of(flag_us):
    """Where the two cores are; only points of one state are compared."""
    if flag_us <= 0:
        return "unknown"
    if flag_us < FLAG_SMT_US:
        return "smt"
    return "near" if flag_us < FLAG_NEAR_US else "far" if flag_us > FLAG_FAR_US else "between"


def points_of(options, ranks):
    """The operations and sizes of one number of ranks. Many ranks on few cores: the smallest AllReduce says it all."""
    crowded = ranks > 8
    ops = options.ops or (["all_reduce"] if crowded else OPS)
    sizes = options.sizes or ([8] if crowded else SIZES if options.full else QUICK_SIZES)
    for op in ops:
        if op == "pingpong" and ranks > 2:
            continue  # the idle ranks would spin against it
        for size in [0] if op == "barrier" else sizes:
            yield op, size


class Run:
    def __init__(self, options, candidates, missing):
        self.options, self.candidates = options, candidates
        self.began, self.points = time.monotonic(), 0
        self.host = Host(options)
        self.file = open(os.path.join(options.out, "points.json"), "w")
        self.record(kind="run", time=time.strftime("%Y-%m-%d %H:%M:%S %z"), machine=platform.machine(),
                    kernel=platform.release(), cores=len(os.sched_getaffinity(0)), full=options.full,
                    rounds=options.rounds, seconds=options.seconds)
        for name, reason in missing.items():
            self.record(kind="missing", candidate=name, reason=reason)
            print(f"not here: {name}: {reason}")

    def record(self, **fields):
        self.file.write(json.dumps(fields) + "\n")
        self.file.flush()

    def lose(self, jobs, job, error):
        print(f"\n{job.name} with {job.ranks} ranks is out: {error}", flush=True)
        self.record(kind="lost", candidate=job.name, ranks=job.ranks, reason=str(error))
        jobs.remove(job)
        job.end(kindly=False)

    def start(self, ranks, parent):
        bind = self.options.bind
        bound = bind == "core" or (bind == "auto" and ranks <= len(os.sched_getaffinity(0)))
        jobs = []
        for candidate in self.candidates:
            jobs.append(Job(self.options, candidate, ranks, bound, parent))
            try:
                jobs[-1].collect(START_SECONDS)
                self.record(kind="candidate", candidate=jobs[-1].name, ranks=ranks, bound=bound,
                            command=jobs[-1].command)
            except Failed as error:
                self.lose(jobs, jobs[-1], error)
        return jobs

    def measure(self, jobs, job, op, size, number):
        before = self.host.flag()
        began = time.monotonic()
        try:
            answer = job.measure(op, size, self.options.seconds)
        except Failed as error:
            self.lose(jobs, job, f"{op} of {size} bytes: {error}")
            return None
        took = time.monotonic() - began
        after = self.host.flag()
        if "unsupported" in answer:
            return None
        del answer["rank"]
        self.points += 1
        self.record(kind="point", candidate=job.name, round=number, flag_before_us=before, flag_after_us=after,
                    state=state_of(before) if state_of(before) == state_of(after) else "mixed", **answer)
        wrong = f" {answer['wrong']} WRONG" if answer["wrong"] else ""
        print(f"  {job.name} {answer['time_us']['median']:.2f} [{before:.2f} {after:.2f}]{wrong}", end="", flush=True)
        return answer["time_us"]["median"], took

    def slow_key(self, name, op, size):
        """What is not asked again after a slow point: that point, or, to be quick, that size in any operation."""
        return (name, op, size) if self.options.full else (name, size)

    def measure_all(self, jobs, op, size, number, slow):
        """One point, by each candidate in turn; who begins changes from round to round."""
        print(f"{jobs[0].ranks} ranks, round {number + 1}, {op} {size}:", end="")
        turn = number % len(jobs)
        results = {}
        for job in jobs[turn:] + jobs[:turn]:
            if self.slow_key(job.name, op, size) not in slow:
                results[job.name] = self.measure(jobs, job, op, size, number)
        print(flush=True)
        results = {name: result for name, result in results.items() if result}
        best = min((result[0] for result in results.values()), default=0)
        for name, (median, took) in results.items():
            if name != POLYPATH and median > SLOW_FACTOR * best and took > SLOW_SECONDS:
                slow.add(self.slow_key(name, op, size))

    def run_ranks(self, ranks, parent, deadline):
        jobs = self.start(ranks, parent)
        slow, begun = set(), self.points  # to start may take all the time; one point is measured all the same
        try:
            for number in range(self.options.rounds):
                self.record(kind="memory", ranks=ranks, round=number, **self.host.ask("memory"))
                for op, size in points_of(self.options, ranks):
                    if not jobs:
                        return
                    if time.monotonic() > deadline and self.points > begun:
                        print(f"the time of {ranks} ranks is over in round {number + 1}")
                        return
                    self.measure_all(jobs, op, size, number, slow)
        finally:
            for job in jobs:
                job.dismiss()
            for job in jobs:
                job.end()

    def run(self):
        with tempfile.TemporaryDirectory(prefix="polypath-peers-") as parent:
            # The time is divided by the number of points; to start the jobs is worth some points.
            weights = [10 + len(list(points_of(self.options, ranks))) for ranks in self.options.ranks]
            for index, ranks in enumerate(self.options.ranks):
                now, deadline = time.monotonic(), float("inf")
                if self.options.limit:
                    part = weights[index] / sum(weights[index:])
                    deadline = now + (self.began + self.options.limit - now) * part
                self.run_ranks(ranks, parent, deadline)
        self.host.end()
        self.file.close()


def main():
    options = read_options()
    # SIGTERM ends the run as SIGINT does, so that the jobs are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(options.out, exist_ok=True)
    cache = os.path.join(os.path.abspath(options.out), "polypath-cache.json")
    if os.path.exists(cache):
        os.unlink(cache)  # every run tunes itself, and leaves the user's own cache alone
    os.environ.update(POLYPATH_CACHE=cache, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    candidates, missing = choose_candidates(options)
    Run(options, candidates, missing).run()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
