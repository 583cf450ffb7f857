"""Program that measures the all-reduce in one process."""

import atexit
import contextlib
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.benchmarks.processes import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.cluster import detect
from tfdist.cluster.address import split_address
from tfdist.collectives.base import Collective
from tfdist.collectives.tensorflow import TensorFlowCollective
from tfdist.devices import pin
from tfdist.scaling.laws import bus_bandwidth

Functions = Mapping[str, Callable[[], object]]

_FLOAT_BYTES = 4
_CALLS_OF_A_TURN = 10
# Warm-up calls compile, fill caches, and synchronize the ranks after their sleep.
_WARM_UP_CALLS = 3
# The baseline must not use the groups and keys of the collective.
_BASELINE_GROUP = 1_000_000
_BASELINE_KEY = 1
_BUFFER_BYTES = 2**18
_RETRY_SECONDS = 0.05
_CALL = "an all-reduce of the benchmark"


def measure(
    turn: Turn, *, collective: str, sizes_bytes: list[int], repeats: int
) -> list[dict[str, list[float]]]:
    """Return the seconds of each all-reduce by name, for each size."""
    # "tfdist" alternates with the baselines: TensorFlow's own ring on the whole tensor
    # ("single_ring"), or `hvd.allreduce` in a `tf.function` ("graph") and "eager". MPI
    # has no baseline. torch, another baseline, has a group of its own, and so have the
    # limits that the machine sets.
    make = {
        "tensorflow": _with_tensorflow,
        "mpi": _with_mpi,
        "horovod": _with_horovod,
        "torch": _with_torch,
        "limits": _with_limits,
    }[collective]
    return time_sizes(turn, sizes_bytes, repeats, make())


def time_sizes(
    turn: Turn,
    sizes_bytes: Sequence[int],
    repeats: int,
    make_functions: Callable[[int], Functions],
) -> list[dict[str, list[float]]]:
    """Return the seconds of each call of functions by name, for each size."""
    # Wait until the processes of all groups have started.
    turn.take()
    turn.pass_on()
    return [_time_calls(turn, make_functions(size), repeats) for size in sizes_bytes]


def _time_calls(
    turn: Turn, functions: Functions, repeats: int
) -> dict[str, list[float]]:
    """Time functions alternately, forwards and backwards, a few calls per turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = [*functions]
    for first in range(0, repeats, _CALLS_OF_A_TURN):
        turn.take()
        for call in range(-_WARM_UP_CALLS, min(_CALLS_OF_A_TURN, repeats - first)):
            for name in order:
                start = perf_counter()
                functions[name]()
                seconds = perf_counter() - start
                if call >= 0:
                    times[name].append(seconds)
            order.reverse()
        turn.pass_on()
    return times


def _with_tensorflow() -> Callable[[int], Functions]:
    """Return the factory of the timed functions with TensorFlow's collective."""
    collective = TensorFlowCollective(detect())

    def make(size_bytes: int) -> Functions:
        tensor = _make_tensor(size_bytes)
        ring = tf.function(lambda flat: _single_ring(flat, collective.size))

        def reduce_by_ring() -> None:
            with collective.call(_CALL):
                ring(tensor)

        return {
            "tfdist": _reducer(collective, tensor),
            "single_ring": reduce_by_ring,
        }

    return make


def _with_mpi() -> Callable[[int], Functions]:
    """Return the factory of the timed function with MPI."""
    from tfdist.collectives.mpi import MPICollective

    collective = MPICollective()
    return lambda size: {"tfdist": _reducer(collective, _make_tensor(size))}


def _with_torch() -> Callable[[int], Functions]:
    """Return the factory of the timed function with torch over Gloo."""
    import torch
    from torch import distributed

    cluster = detect()
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{cluster.addresses[0]}",
        rank=cluster.rank,
        world_size=cluster.size,
    )
    # Its threads would abort the process.
    atexit.register(distributed.destroy_process_group)

    def make(size_bytes: int) -> Functions:
        # The sum overwrites the tensor; zeros never overflow.
        tensor = torch.zeros(size_bytes // _FLOAT_BYTES)
        return {"torch": lambda: distributed.all_reduce(tensor)}

    return make


def _with_limits() -> Callable[[int], Functions]:
    """Return the factory of the functions that memory and TCP allow to be no faster."""
    cluster = detect()
    # Addition by one process, transfer by two; the others are idle.
    connection = _connect(cluster.addresses[0], cluster.rank)

    def make(size_bytes: int) -> Functions:
        total, other = np.zeros((2, size_bytes // _FLOAT_BYTES), np.float32)
        # What each process must send, in any algorithm.
        sent = bytes(int(bus_bandwidth(size_bytes, cluster.size, seconds=1.0)))

        def add() -> None:
            if cluster.rank == 0:
                np.add(total, other, out=total)

        def send() -> None:
            if connection is not None:
                exchange(connection, sent)

        return {"memory": add, "tcp": send}

    return make


def _with_horovod() -> Callable[[int], Functions]:
    """Return the factory of the timed functions with Horovod."""
    import horovod.tensorflow as hvd

    from tfdist.collectives.horovod.collective import HorovodCollective

    pin()
    collective = HorovodCollective()

    def make(size_bytes: int) -> Functions:
        tensor = _make_tensor(size_bytes)
        graph = tf.function(
            lambda flat: hvd.allreduce(flat, op=hvd.Sum, name=f"graph.{size_bytes}")
        )
        return {
            "tfdist": _reducer(collective, tensor),
            "graph": lambda: graph(tensor),
            "eager": lambda: hvd.allreduce(
                tensor, op=hvd.Sum, name=f"eager.{size_bytes}"
            ),
        }

    return make


def _connect(address: str, rank: int) -> socket.socket | None:
    """Connect ranks 0 and 1 with each other, and no other."""
    place = split_address(address)
    if rank == 0:
        with socket.create_server(place) as listener:
            return listener.accept()[0]
    while rank == 1:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(place)
        time.sleep(_RETRY_SECONDS)
    return None


def exchange(connection: socket.socket, sent: bytes) -> None:
    """Send bytes to a process that sends as many at the same time."""
    connection.setblocking(False)
    waiting, missing, buffer = memoryview(sent), len(sent), bytearray(_BUFFER_BYTES)
    while waiting or missing:
        readers, writers = [connection] * bool(missing), [connection] * bool(waiting)
        readable, writable, _ = select.select(readers, writers, [])
        if readable:
            missing -= connection.recv_into(buffer, min(missing, _BUFFER_BYTES))
        if writable:
            waiting = waiting[connection.send(waiting) :]


def _make_tensor(size_bytes: int) -> Any:
    """Return a tensor of random float32 numbers."""
    return tf.random.stateless_normal([size_bytes // _FLOAT_BYTES], [0, 0])


def _reducer(collective: Collective, tensor: Any) -> Callable[[], None]:
    """Return a function that reduces a tensor in a graph, as a strategy does."""
    name = f"benchmark of {tensor.shape}"
    reduce = tf.function(lambda flat: collective.all_reduce([flat], name=name)[0])

    def reduce_now() -> None:
        with collective.call(_CALL):
            reduce(tensor)

    return reduce_now


def _single_ring(flat: Any, size: int) -> Any:
    """Sum a tensor over all processes by a single op."""
    return tf.raw_ops.CollectiveReduceV2(
        input=flat,
        group_size=size,
        group_key=_BASELINE_GROUP,
        # TensorFlow binds a key to one shape.
        instance_key=_BASELINE_KEY + flat.shape.num_elements(),
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
    )


if __name__ == "__main__":
    run_program(measure)
