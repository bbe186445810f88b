#!/usr/bin/env python3
"""gloo, through torch.distributed, as bench/peers.sh measures it: peer_gloo.py DIR RANKS

Starts its ranks and serves points as bench/peer/serve.h describes: the same orders, blocks, checks and answers.
gloo has no barrier-free way to agree on a time, so it uses its own AllReduce, as all candidates do.
"""
import json
import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist

PERIOD, LARGEST_VALUE = 8191, 61
WARM_UP, BLOCKS_LEAST, BLOCKS_MOST = 5, 3, 20000
BLOCK_OPS = ("all_gather", "reduce_scatter", "all_to_all")


def block_operations(size):
    return 20 if size <= 8 << 10 else 8 if size <= 128 << 10 else 4 if size <= 512 << 10 else 1


def agree_max(*values):
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


class Point:
    def __init__(self, op, asked, rank, ranks):
        self.op, self.rank, self.ranks = op, rank, ranks
        pieces = ranks if op in BLOCK_OPS else 1
        self.count = 0 if op == "barrier" else max(1, asked // 4 // pieces)
        self.bytes = self.count * 4 * pieces
        self.send, self.recv = (torch.zeros(self.count * pieces) for _ in range(2))

    def data(self, source, start, salt):
        """Elements from `start` on of what `source` sends; None: of the sum over all ranks."""
        factor = self.ranks * (self.ranks + 1) // 2 if source is None else source + 1
        index = (torch.arange(start, start + self.count) % PERIOD + salt) * 7919 % 104729
        return (factor * (1 + index % LARGEST_VALUE)).float()

    def operate(self):
        op, rank, ranks, send, recv = self.op, self.rank, self.ranks, self.send, self.recv
        if op == "all_reduce":  # gloo reduces in place; the copy is part of an operation that is not
            recv.copy_(send)
            dist.all_reduce(recv)
        elif op == "all_gather":
            dist.all_gather(list(recv.view(ranks, -1)), send[:self.count])
        elif op == "reduce_scatter":
            dist.reduce_scatter(recv[:self.count], list(send.view(ranks, -1)))
        elif op == "broadcast":
            dist.broadcast(recv if rank else send, 0)
        elif op == "all_to_all":
            dist.all_to_all_single(recv, send)
        elif op == "sendrecv":
            request = dist.isend(send, (rank + 1) % ranks)
            dist.recv(recv, (rank - 1) % ranks)
            request.wait()
        elif op == "pingpong" and rank == 0:
            dist.send(send, 1)
            dist.recv(recv, 1)
        elif op == "pingpong" and rank == 1:
            dist.recv(recv, 0)
            dist.send(send, 0)
        elif op == "barrier":
            dist.barrier()

    def count_wrong(self, salt):
        op, rank, ranks, count = self.op, self.rank, self.ranks, self.count
        if op == "barrier" or (op == "broadcast" and rank == 0) or (op == "pingpong" and rank > 1):
            return 0
        if op in ("all_gather", "all_to_all"):
            start = rank * count if op == "all_to_all" else 0
            return sum(int((self.recv[r * count:(r + 1) * count] != self.data(r, start, salt)).sum())
                       for r in range(ranks))
        source = {"broadcast": 0, "sendrecv": (rank - 1) % ranks, "pingpong": 1 - rank}.get(op)
        start = rank * count if op == "reduce_scatter" else 0
        return int((self.recv[:count] != self.data(source, start, salt)).sum())

    def check_once(self, salt):
        self.recv.fill_(-1)
        for block in range(self.send.numel() // self.count if self.count else 0):
            start = block * self.count
            self.send[start:start + self.count] = self.data(self.rank, start, salt)
        self.operate()
        return self.count_wrong(salt)


def time_block(point, operations):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(operations):
        point.operate()
    each = (time.perf_counter() - start) * 1e6 / operations
    return each / 2 if point.op == "pingpong" else each


def measure(op, asked, seconds, rank, ranks):
    point, salt = Point(op, asked, rank, ranks), int(time.monotonic())
    salt = int(agree_max(salt)[0])
    wrong = point.check_once(salt)
    point.recv.fill_(-2)
    operations = block_operations(point.bytes)
    start = time.perf_counter()
    for _ in range(WARM_UP):
        point.operate()
        if operations == 1 and agree_max(time.perf_counter() - start)[0] > seconds / 2:
            break
    times, elapsed, start = [], 0, time.perf_counter()
    while len(times) < BLOCKS_LEAST or (elapsed < seconds and len(times) < BLOCKS_MOST):
        each, elapsed = agree_max(time_block(point, operations), time.perf_counter() - start)
        times.append(each)
    wrong += point.count_wrong(salt) + point.check_once(salt + 1)
    times.sort()
    spread = {"min": times[0], "median": times[len(times) // 2], "p90": times[(len(times) - 1) * 9 // 10],
              "max": times[-1]}
    return {"rank": 0, "op": op, "bytes": 0 if op == "barrier" else asked, "actual": point.bytes, "ranks": ranks,
            "blocks": len(times), "operations": operations, "wrong": int(agree_max(wrong)[0]), "time_us": spread}


def serve(directory, rank, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks)
    answers = os.open(f"{directory}/answers", os.O_WRONLY)
    with open(f"{directory}/orders.{rank}", encoding="ascii") as orders:
        os.write(answers, json.dumps({"rank": rank}).encode() + b"\n")
        for line in orders:
            op, size, seconds = line.split()
            try:
                answer = measure(op, int(size), float(seconds), rank, ranks)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if "support" not in str(error):  # some versions of torch lack some operations over gloo
                    raise
                answer = {"rank": 0, "unsupported": str(error)}
            os.write(answers, json.dumps(answer if rank == 0 else {"rank": rank}).encode() + b"\n")


def main():
    directory, ranks = sys.argv[1], int(sys.argv[2])
    # Started afresh, not forked: torch has threads by now.
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=serve, args=(directory, rank, ranks)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
