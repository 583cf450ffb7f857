"""Transfers by MPI, on a communicator made for the test."""

import sys
import threading
import types

import ml_dtypes
import numpy as np
import pytest

from tfdist.collectives import mpi_transfers
from tfdist.collectives.mpi_transfers import OutputBuffers, Transfers

HALF = [np.float16, ml_dtypes.bfloat16]


class Request:
    """A request that other ranks join after some polls."""

    def __init__(self, polls):
        self._polls = polls

    def Test(self):
        self._polls -= 1
        return self._polls < 0


class World:
    """A communicator whose other rank sends the same."""

    rank, size = 0, 2

    def __init__(self):
        self.polls = 0
        self.sent = []

    def Dup(self):
        return self

    def Ibarrier(self):
        return Request(self.polls)

    def Iallreduce(self, mine, every, operation):
        every[:] = mine
        return Request(self.polls)

    def allgather(self, value):
        return [value] * 2

    def Allreduce(self, sent, received, operation):
        result, _ = received
        mine = result.copy() if sent == "in place" else sent[0]
        result[:] = mine
        self.sent.append(result.size)
        operation(mine.tobytes(), result, None)

    def Bcast(self, sent, root_rank):
        self.sent.append(sent[0].size)


def add_floats(received, result, kind):
    result.view(np.float32)[:] += np.frombuffer(received, np.float32)


@pytest.fixture
def world(monkeypatch):
    """The other rank of a job of two, for a `Transfers` that loads no MPI."""
    names = ("FLOAT", "DOUBLE", "INT32_T", "INT64_T", "UINT16_T", "BYTE", "MIN")
    mpi = types.SimpleNamespace(
        **dict.fromkeys(names),
        IN_PLACE="in place",
        SUM=add_floats,
        Op=types.SimpleNamespace(Create=lambda combine, commute: combine),
    )
    monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(MPI=mpi))
    return World()


def test_small_arrays_share_a_message_and_large_ones_go_in_pieces(world):
    transfers = Transfers(world)
    large = np.arange(3 * 2**20 // 4 + 1, dtype=np.float32)
    arrays = [np.float32(3).reshape(()), large, np.zeros([0, 4], np.float32)]
    arrays.append(np.ones([2, 3], np.float32))

    results = transfers.reduce("it", arrays, "sum")

    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result, array + array)
        assert result.shape == array.shape
    # The scalar and the six numbers, each from an aligned position on.
    assert world.sent == [2**20, 2**20, 2**20, 4, 128]


def test_results_are_aligned_so_that_tensorflow_need_not_copy_them(world):
    arrays = [np.ones(n, np.float32) for n in (1, 3, 17, 100_001)]

    results = Transfers(world).reduce("it", arrays, "sum")

    assert [result.ctypes.data % 64 for result in results] == [0] * 4


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("reduction", ["sum", "min", "max"])
def test_numbers_of_two_bytes_are_combined_to_the_nearest(dtype, reduction, world):
    transfers = Transfers(world)
    operation, _ = transfers._operation(reduction, np.dtype(dtype))
    # All bit patterns against shuffled ones: infinities, NaN and subnormals too.
    bits = np.arange(2**16, dtype=np.uint16)
    other = np.random.default_rng(0).permutation(bits)
    result = other.copy()

    operation(bits.tobytes(), result, None)

    exact = {"sum": np.add, "min": np.minimum, "max": np.maximum}[reduction]
    with np.errstate(all="ignore"):
        left, right = (each.view(dtype).astype(np.float64) for each in (bits, other))
        wanted = exact(left, right).astype(dtype).astype(np.float64)
        found = result.view(dtype).astype(np.float64)
    np.testing.assert_array_equal(found, wanted)


def test_nan_of_any_rank_is_the_minimum_and_the_maximum(world):
    transfers = Transfers(world)
    for reduction in ("min", "max"):
        operation, _ = transfers._operation(reduction, np.dtype(np.float32))
        for mine, other in ((np.nan, 1.0), (1.0, np.nan)):
            result = np.array([mine], np.float32)
            operation(np.array([other], np.float32).tobytes(), result, None)
            assert np.isnan(result[0])


def test_a_rank_that_waits_learns_of_a_failure(world):
    world.polls = 10**9
    transfers = Transfers(world)
    checks = []

    def check():
        checks.append(1)
        if len(checks) == 3:
            raise ConnectionError("rank 1 is gone")

    transfers.check = check
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        transfers.broadcast("it", [np.ones(2)], 0)
    # Another thread may still use it.
    world.polls, transfers.check = 5, lambda: None
    transfers.broadcast("it", [np.ones(2)], 0)
    assert world.sent == [16]


def test_a_process_that_makes_no_strategy_is_not_waited_for_for_ever(world):
    world.polls = 10**9
    text = (
        r"Not every process that was started makes the strategy\. Received: nothing "
        r"from some of the 2 ranks after 0\.1 s, on rank 0\. Look at the logs"
    )
    with pytest.raises(TimeoutError, match=text):
        Transfers(world).wait_for_all(0.1)


def test_a_transfer_that_does_not_end_after_a_failure_ends_the_process(
    world, monkeypatch, capsys
):
    ended = []
    monkeypatch.setattr(mpi_transfers, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(mpi_transfers.os, "_exit", ended.append)
    transfers, go_on, begun = Transfers(world), threading.Event(), threading.Event()

    def hang(*_):
        begun.set()
        go_on.wait(120)

    world.Bcast = hang
    transfer = threading.Thread(
        target=transfers.broadcast, args=("it", [np.ones(2)], 0)
    )
    transfer.start()
    assert begun.wait(120)
    transfers.stop("rank 1 is gone.")
    go_on.set()
    transfer.join()
    transfers.stop("rank 1 is gone.")

    assert ended == [1]
    assert capsys.readouterr().err == (
        "tfdist: A transfer of MPI does not end after 0.1 s, so this process ends. "
        "rank 1 is gone.\n"
    )


def test_a_buffer_is_used_again_once_all_its_views_are_gone():
    buffers = OutputBuffers()
    first = buffers.take(1000)
    address, view = first.ctypes.data, first[:10]
    del first

    second = buffers.take(1000)
    assert second.ctypes.data != address
    del view
    assert buffers.take(1000).ctypes.data == address
    assert buffers.take(2000).ctypes.data not in (address, second.ctypes.data)
