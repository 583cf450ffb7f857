"""Transfers of NumPy arrays between ranks by MPI, each agreed on beforehand."""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from tfdist.recorder.ring import Flight, Unrecorded

# Larger pieces leave the caches between being written and being read.
_PIECE_BYTES = 2**20
# From this size on, an array is reduced where it is, instead of being packed.
_ALONE_BYTES = 2**18
# So many bytes of arrays are received before they are added.
_CHUNK_BYTES = 2**24
# MPI counts by integers of four bytes.
_MESSAGE_BYTES = 2**30
# The alignment of tensors, without which TensorFlow would copy the results.
_ALIGNMENT_BYTES = 64
# A rank that waits for others polls for so long, and then sleeps between polls: even
# the shortest sleep takes longer than a small transfer.
_POLL_SECONDS = 5e-3
_SLEEP_SECONDS = 5e-5
# A transfer that a peer has left does not end.
_STOP_SECONDS = 10.0
_UFUNCS = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}


class Transfers:
    """Collective transfers on a communicator of MPI, one at a time.

    `check` raises an exception if a peer has failed; it is called while waiting.
    """

    def __init__(self, world: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = self._comm = world
        self.rank, self.size = int(world.rank), int(world.size)
        self.check: Callable[[], None] = lambda: None
        self.recorder: Flight | Unrecorded = Unrecorded()
        # One thread at a time, so that the order of transfers is one.
        self._lock = threading.Lock()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._mine, self._all = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._operations: dict[tuple[str, Any], Any] = {}
        self._outputs = OutputBuffers()

    def wait_for_all(self, timeout_seconds: float) -> None:
        """Wait until every rank has called this, and take a communicator of our own."""
        deadline = time.monotonic() + timeout_seconds

        def check() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "Not every process that was started makes the strategy. Received: "
                    f"nothing from some of the {self.size} ranks after "
                    f"{timeout_seconds:g} s, on rank {self.rank}. Look at the logs of "
                    "the others, and let all of them run the same program."
                )

        self._wait(self._world.Ibarrier(), check)
        self._comm = self._world.Dup()

    def is_local(self) -> bool:
        """Return whether all ranks share a host."""
        host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        is_local = host.size == self.size
        host.Free()
        return is_local

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather a small value from all ranks, each of which has answered."""
        return self._comm.allgather(value)

    def finalize(self) -> None:
        """End MPI, which waits for all ranks."""
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def stop(self, reason: str) -> None:
        """End the process if a transfer hangs because a peer has failed."""
        if not self._is_idle.wait(_STOP_SECONDS):
            sys.stdout.flush()
            print(
                f"tfdist: A transfer of MPI does not end after {_STOP_SECONDS:g} s, so "
                f"this process ends. {reason}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)

    def reduce(self, what: str, arrays: Sequence[Any], reduction: str) -> list[Any]:
        """Combine arrays of one type over all ranks; "mean" gives the sum."""
        with self._agreed(what, arrays):
            operation, kind = self._operation(reduction, arrays[0].dtype)
            # The small ones first, so that they are neighbours in the output.
            order = sorted(range(len(arrays)), key=lambda i: _is_alone(arrays[i]))
            offsets, total = _offsets([arrays[i].nbytes for i in order])
            flat = self._outputs.take(total)
            results: dict[int, Any] = {}
            packed = 0
            for i, start in zip(order, offsets, strict=True):
                array = arrays[i]
                end = start + array.nbytes
                result = flat[start:end].view(array.dtype)
                if _is_alone(array):
                    mine = array.reshape(-1).view(np.uint8)
                    self._reduce_pieces(mine, flat[start:end], operation, kind)
                else:
                    result[...] = array.reshape(-1)
                    packed = end
                results[i] = result.reshape(array.shape)
            packed = -(-packed // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            self._reduce_pieces(None, flat[:packed], operation, kind)
            return [results[i] for i in range(len(arrays))]

    def reduce_to(
        self, what: str, arrays: Sequence[Any], roots: Sequence[int]
    ) -> list[Any]:
        """Sum each array on one rank; the others get back their own."""
        with self._agreed(what, arrays):
            results = list(arrays)
            for chunk in _chunks([array.nbytes for array in arrays]):
                self._sum_chunk(results, {i: roots[i] for i in chunk})
            return results

    def share(
        self, what: str, arrays: Sequence[Any], roots: Sequence[int]
    ) -> list[Any]:
        """Send each array from one rank to all."""
        with self._agreed(what, arrays):
            results, requests = [], []
            for array, root in zip(arrays, roots, strict=True):
                is_root = self.rank == root
                # The root gives its own array back.
                results.append(array if is_root else _empty_like(array))
                requests += (
                    self._send(array, self._others())
                    if is_root
                    else self._receive(results[-1], root)
                )
            self._mpi.Request.Waitall(requests)
            return results

    def _sum_chunk(self, results: list[Any], roots: dict[int, int]) -> None:
        """Replace those arrays that this rank needs by their sums."""
        sends = []
        for i, root in roots.items():
            if root != self.rank:
                sends += self._send(results[i], [root])
                continue
            own = results[i]
            flat = self._outputs.take(own.nbytes).view(own.dtype)
            results[i] = flat.reshape(own.shape)
            results[i][...] = own
        needed = [i for i, root in roots.items() if root == self.rank]
        theirs = [np.empty_like(results[i]) for i in needed]
        # One rank after the other, so that many ranks need no more buffers than two.
        for rank in self._others():
            receives = [self._receive(array, rank) for array in theirs]
            self._mpi.Request.Waitall([*chain.from_iterable(receives)])
            for i, array in zip(needed, theirs, strict=True):
                results[i] += array
        self._mpi.Request.Waitall(sends)

    def _others(self) -> list[int]:
        """Return the other ranks."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def _send(self, array: Any, ranks: Sequence[int]) -> list[Any]:
        """Begin to send an array to ranks."""
        parts = _messages(array)
        byte = self._mpi.BYTE
        return [self._comm.Isend([part, byte], r) for r in ranks for part in parts]

    def _receive(self, array: Any, rank: int) -> list[Any]:
        """Begin to receive an array from a rank."""
        return [
            self._comm.Irecv([part, self._mpi.BYTE], rank) for part in _messages(array)
        ]

    def gather(self, what: str, arrays: Sequence[Any]) -> list[Any]:
        """Concatenate the rows of all ranks, of one array."""
        (array,) = arrays
        row = array.shape[1:]
        with self._agreed(what, [array], [row]):
            size = int(np.prod(row, dtype=np.int64)) * array.dtype.itemsize
            counts = np.zeros(self.size, np.int64)
            self._comm.Allgather(np.array([array.shape[0]], np.int64), counts)
            gathered = np.empty((int(counts.sum()), *row), array.dtype)
            # In rows, because MPI counts by integers of four bytes.
            kind = self._mpi.BYTE.Create_contiguous(max(1, size)).Commit()
            if size:
                mine = [array, array.shape[0], kind]
                self._comm.Allgatherv(mine, [gathered, counts.tolist(), kind])
            kind.Free()
            return [gathered]

    def all_to_all(self, what: str, arrays: Sequence[Any]) -> list[Any]:
        """Send each rank its row, and return those that all ranks send to this one."""
        (array,) = arrays
        with self._agreed(what, arrays):
            received = _empty_like(array)
            requests = []
            for rank in range(self.size):
                requests += self._receive(received[rank : rank + 1], rank)
                requests += self._send(array[rank : rank + 1], [rank])
            self._mpi.Request.Waitall(requests)
            return [received]

    def broadcast(self, what: str, arrays: Sequence[Any], root_rank: int) -> list[Any]:
        """Send the arrays of one rank to all."""
        with self._agreed(what, arrays):
            is_root = self.rank == root_rank
            # The root gives its own arrays back.
            sent = [array if is_root else _empty_like(array) for array in arrays]
            for array in sent:
                flat = array.reshape(-1).view(np.uint8)
                for start in range(0, flat.size, _PIECE_BYTES):
                    piece = flat[start : start + _PIECE_BYTES]
                    self._comm.Bcast([piece, self._mpi.BYTE], root_rank)
            return sent

    def _reduce_pieces(self, mine: Any, result: Any, operation: Any, kind: Any) -> None:
        """Combine bytes over all ranks, in place if `mine` is None."""
        for start in range(0, result.size, _PIECE_BYTES):
            piece = slice(start, start + _PIECE_BYTES)
            sent = self._mpi.IN_PLACE if mine is None else [mine[piece], kind]
            self._comm.Allreduce(sent, [result[piece], kind], operation)

    def _operation(self, reduction: str, dtype: Any) -> tuple[Any, Any]:
        """Return MPI's operation and type for a reduction of a NumPy type."""
        kinds = {
            "float32": self._mpi.FLOAT,
            "float64": self._mpi.DOUBLE,
            "int32": self._mpi.INT32_T,
            "int64": self._mpi.INT64_T,
        }
        kind = kinds.get(dtype.name, self._mpi.UINT16_T)
        if reduction in ("sum", "mean") and dtype.name in kinds:
            return self._mpi.SUM, kind
        key = reduction, dtype.name
        if key not in self._operations:
            # MPI has no operation on two bytes, and orders NaN as it likes.
            combine = _in_place(_UFUNCS[reduction], dtype)
            self._operations[key] = self._mpi.Op.Create(combine, commute=True)
        return self._operations[key], kind

    @contextmanager
    def _agreed(
        self, what: str, arrays: Sequence[Any], shapes: Sequence[Any] | None = None
    ) -> Iterator[None]:
        """Wait until all ranks have begun the same transfer; hold it for a block."""
        shapes = [array.shape for array in arrays] if shapes is None else shapes
        description = f"{what} of shapes {[tuple(shape) for shape in shapes]}"
        size_bytes = sum(array.nbytes for array in arrays)
        digest = hashlib.blake2b(description.encode(), digest_size=7).digest()
        key = int.from_bytes(digest, "big")
        with self._lock, self.recorder.entry(description, size_bytes) as agreed:
            self._mine[:] = key, -key
            # Blocking transfers could not be interrupted when a peer fails.
            request = self._comm.Iallreduce(self._mine, self._all, self._mpi.MIN)
            self._wait(request, self.check)
            self._is_idle.clear()
            try:
                if self._all[0] != -self._all[1]:
                    raise RuntimeError(_differing(self.gather_objects(description)))
                agreed()
                yield
            finally:
                self._is_idle.set()

    def _wait(self, request: Any, check: Callable[[], None]) -> None:
        """Wait for a request of MPI, letting other threads work."""
        began = time.monotonic()
        while not request.Test():
            check()
            if time.monotonic() - began < _POLL_SECONDS:
                os.sched_yield()
            else:
                time.sleep(_SLEEP_SECONDS)


class OutputBuffers:
    """Buffers for results, used again once TensorFlow has let go of them.

    New memory costs more than the transfer: the system clears each page of it.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[Any]] = {}
        probe = [np.zeros(1, np.uint8)]
        # The number of references to an array that only such a list holds.
        self._unused = _references(probe, 0)

    def take(self, size_bytes: int) -> Any:
        """Return aligned bytes that are in use until the last view of them is gone."""
        buffers = self._kept.setdefault(size_bytes, [])
        for i in range(len(buffers)):
            if _references(buffers, i) <= self._unused:
                return _aligned(buffers[i], size_bytes)
        buffers.append(np.zeros(size_bytes + _ALIGNMENT_BYTES, np.uint8))
        return _aligned(buffers[-1], size_bytes)


def _references(buffers: list[Any], position: int) -> int:
    """Return the number of references to an item of a list."""
    return sys.getrefcount(buffers[position])


def _aligned(buffer: Any, size_bytes: int) -> Any:
    """Return the first aligned bytes of a buffer, as a view."""
    start = -buffer.ctypes.data % _ALIGNMENT_BYTES
    return buffer[start : start + size_bytes]


def _empty_like(array: Any) -> Any:
    """Return an aligned array of the same shape and type."""
    buffer = np.empty(array.nbytes + _ALIGNMENT_BYTES, np.uint8)
    return _aligned(buffer, array.nbytes).view(array.dtype).reshape(array.shape)


def _messages(array: Any) -> list[Any]:
    """Return the bytes of an array in parts that MPI can count."""
    flat = array.reshape(-1).view(np.uint8)
    return [
        flat[start : start + _MESSAGE_BYTES]
        for start in range(0, flat.size, _MESSAGE_BYTES)
    ]


def _chunks(sizes_bytes: Sequence[int]) -> list[list[int]]:
    """Return the positions of arrays in groups that are received at a time."""
    chunks: list[list[int]] = [[]]
    size = 0
    for i, size_bytes in enumerate(sizes_bytes):
        if size >= _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(i)
        size += size_bytes
    return chunks


def _offsets(sizes_bytes: Sequence[int]) -> tuple[list[int], int]:
    """Return aligned positions for parts of these sizes, and the end of the last."""
    offsets, end = [], 0
    for size in sizes_bytes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, end


def _is_alone(array: Any) -> bool:
    """Return whether an array is reduced without being packed."""
    return array.nbytes >= _ALONE_BYTES


def _in_place(combine: Any, dtype: Any) -> Callable[[Any, Any, Any], None]:
    """Return a function by which MPI combines one buffer with another."""

    def run(received: Any, result: Any, kind: Any) -> None:
        total = np.frombuffer(result, dtype)
        with np.errstate(all="ignore"):
            combine(total, np.frombuffer(received, dtype), out=total)

    return run


def _differing(descriptions: Sequence[str]) -> str:
    """Explain that the ranks have begun different transfers."""
    ranks: dict[str, list[int]] = {}
    for rank, description in enumerate(descriptions):
        ranks.setdefault(description, []).append(rank)
    received = "; ".join(f"{what} on ranks {on}" for what, on in ranks.items())
    return (
        f"The ranks are in different collectives. Received: {received}. Make the same "
        "calls, with the same shapes and in the same order, on every rank."
    )
