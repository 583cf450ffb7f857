"""The control plane of many ranks on one machine: start, heartbeats, a save, the end.

Rank 0 is this process, with its real hub; the others are threads of a few processes,
each with a real lifeline. Meanwhile strangers may connect to rank 0 and send nonsense.
"""

import base64
import multiprocessing
import os
import random
import resource
import socket
import struct
import sys
import threading
import time

import psutil
from script import run_script

from tfdist.benchmarks.processes import check_at_least
from tfdist.liveness.lifeline import monitor
from tfdist.rendezvous.roll_call import Guest, meet, open_door
from tfdist_cli.table import format_table

_SECONDS = 120.0
_BEATS = 3.0
_BYTES_OF_MAXRSS_UNIT = 1024


def measure(args):
    """Run one job of simulated ranks, and return what it took."""
    check_at_least(2, np=args.np, processes=args.processes)
    before, began = psutil.net_io_counters(pernic=True)["lo"], time.monotonic()
    door, token = open_door(is_local=True)
    port = door.getsockname()[1]
    zero = Guest(0, "here", os.getpid(), ("127.0.0.1",), port, token)
    guests = [zero, *(Guest(rank, "here", rank) for rank in range(1, args.np))]
    fork = multiprocessing.get_context("fork")
    stop, frames = fork.Event(), fork.Value("q", 0)
    orders = [range(1 + n, args.np, args.processes) for n in range(args.processes)]
    processes = [
        fork.Process(target=_ranks, args=(ranks, guests, args.bytes))
        for ranks in orders
    ]
    if args.strangers:
        processes.append(fork.Process(target=_strangers, args=(port, stop, frames)))
    for process in processes:
        process.start()
    times = _rank(0, guests, args.bytes, door)
    stop.set()
    for process in processes:
        process.join(_SECONDS)
        if process.exitcode:
            raise ValueError(f"A process has ended with exit code {process.exitcode}.")
    moved = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before.bytes_sent
    figures = {
        "ranks": args.np,
        **times,
        "total_seconds": time.monotonic() - began,
        "sent_bytes": moved,
        "rank_0_peak_bytes": _BYTES_OF_MAXRSS_UNIT
        * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "frames_of_strangers": frames.value,
    }
    rows = [[name, f"{value:,.1f}"] for name, value in figures.items()]
    return figures, format_table(["", "value"], rows)


def _rank(rank, guests, size, door=None):
    """Live the life of a rank; return the seconds of its parts."""
    failures, marks = [], [time.monotonic()]
    met = meet(rank, guests, door, start_timeout_seconds=_SECONDS)
    line = monitor(met, failures.append, _SECONDS)
    marks.append(time.monotonic())
    time.sleep(_BEATS)
    marks.append(time.monotonic())
    state = _state(rank, size)
    line.exchange("the lengths", size)
    texts = line.exchange("save", base64.b64encode(state).decode(), to_chief=True)
    if rank == 0 and base64.b64decode(texts[-1]) != _state(len(guests) - 1, size):
        raise ValueError("A state has not come whole.")
    marks.append(time.monotonic())
    line.leave()
    marks.append(time.monotonic())
    if failures:
        raise ValueError(failures[0])
    names = ("start", "beats", "save", "end")
    return {
        f"{name}_seconds": after - before
        for name, before, after in zip(names, marks, marks[1:], strict=False)
    }


def _state(rank, size):
    return random.Random(rank).randbytes(size)


def _ranks(ranks, guests, size):
    """Run ranks as threads of this process."""
    # Otherwise each thread that waits for Python's lock wakes up 200 times a second.
    sys.setswitchinterval(1.0)
    threads = [
        threading.Thread(target=_rank, args=(rank, guests, size)) for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _strangers(port, stop, frames):
    """Send random frames to rank 0 until its door is closed."""
    draw = random.Random(0)
    bodies = [b"[" * 4000, b'{"a":' * 500, b"{}", b'{"kind": "hello", "nonce": 1}']
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as caller:
                while True:
                    body = draw.choice([*bodies, draw.randbytes(draw.randrange(3000))])
                    caller.sendall(struct.pack("!I", len(body)) + body)
                    frames.value += 1
        except OSError:
            time.sleep(0.0001)


if __name__ == "__main__":
    run_script(
        __doc__,
        [
            ("-np", 1024, "ranks"),
            ("--bytes", 40_000, "what each rank gives to a save"),
            ("--processes", 4, "processes that hold the ranks other than 0"),
            ("--strangers", 0, "1 to have a stranger send nonsense to rank 0"),
        ],
        measure,
    )
