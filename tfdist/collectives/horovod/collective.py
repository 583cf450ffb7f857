"""Horovod's collectives, over Gloo, MPI or NCCL as Horovod was built."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.cluster.launcher import start_timeout
from tfdist.collectives.base import FusingCollective
from tfdist.collectives.horovod.peers import connect, stop_at_exit
from tfdist.collectives.monitored import MonitoredCollective
from tfdist.collectives.wire_format import (
    from_move,
    pack,
    plan_pieces,
    prevent_constant_folding,
    to_move,
    unpack,
    without_bfloat16,
)
from tfdist.compat.tensorflow import local_devices, run_always
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS

# A function of Horovod on tensors, with options, that returns one tensor or several.
_Operation = Callable[..., Any]
# What a rank sends at once to the owners of gradients.
_MESSAGE_BYTES = 8 * 2**20


class HorovodCollective(MonitoredCollective, FusingCollective):
    """A collective of processes started by `horovodrun`, `mpirun` or `tfdist run`.

    Each tensor is sent as soon as it is computed, and Horovod fuses those that wait at
    the same time, but for sums on owners. `process_set` None means all ranks.
    """

    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]] = (
        # Horovod's errors for operations that were in flight.
        tf.errors.UnknownError,
        tf.errors.AbortedError,
    )

    def __init__(
        self,
        process_set: Any = None,
        *,
        start_timeout_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        if not hvd.is_initialized():
            hvd.init()
        check_process_set(process_set)
        self.process_set = (
            hvd.global_process_set if process_set is None else process_set
        )
        if not self.process_set.included():
            raise ValueError(
                "process_set must include the process that trains with it. Received: "
                f"{process_set} on rank {hvd.rank()}. Give each rank the set that it "
                "is in."
            )
        lifeline = connect(
            self.process_set,
            start_timeout_seconds=start_timeout(start_timeout_seconds),
            timeout_seconds=timeout_seconds,
        )
        rank, size = self.process_set.rank(), self.process_set.size()
        super().__init__(rank, size, lifeline)
        self._is_everyone = self.process_set is hvd.global_process_set
        self._common = {"process_set": self.process_set, "ignore_name_scope": True}
        self._functions: dict[str, Any] = {}
        # For `collective_of`.
        self.process_set.tfdist_collective = self

    def check_op(self, op: str) -> None:
        """Raise `ValueError` for Adasum where Horovod does not support it."""
        if op == "adasum":
            check_adasum(self.process_set)

    def all_reduce_as(
        self,
        tensors: Sequence[Any],
        op: str,
        *,
        name: str,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> list[Any]:
        """Combine tensors as a group; see `FusingCollective.all_reduce_as`."""
        # Grouped Adasum fails in Horovod, and Adasum combines each tensor alone anyway.
        if op == "adasum":
            messages = [[tensor] for tensor in tensors]
            return self._all_reduce(messages, hvd.Adasum, name, factors)
        return self._all_reduce([list(tensors)], hvd.Sum, f"{name} together", factors)

    def reduce(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Sum each tensor on one rank; see `Collective.reduce`."""
        shapes = [tensor.shape for tensor in tensors]
        if not all(shape.is_fully_defined() for shape in shapes):
            return super().reduce(tensors, root_ranks, name=name)
        flat = [tf.reshape(without_bfloat16(tensor), [-1]) for tensor in tensors]
        # All ranks send and receive at the same time. A rank gets a part of each, and
        # so several times what it needs, but only of one message.
        most = max(1, _MESSAGE_BYTES // self.size // flat[0].dtype.size)
        sizes = [shape.num_elements() for shape in shapes]
        plan = plan_pieces(sizes, root_ranks, self.size, most)
        messages = [
            [
                tf.concat([flat[i][piece] for each in pieces for i, piece in each], 0),
                tf.constant([_elements(each) for each in pieces]),
            ]
            for pieces in plan
        ]

        # Over Gloo, Horovod's reducescatter takes twice the time of its allreduce, and
        # all blocks of it must be of the same length.
        def exchange(block: Any, splits: Any, **options: Any) -> Any:
            return hvd.alltoall(block, splits, **options)[0]

        sums: dict[int, list[Any]] = {}
        received = self._run(f"reduce {name}", exchange, messages)
        for pieces, block in zip(plan, received, strict=True):
            if own := pieces[self.rank]:
                parts = tf.reshape(block, [self.size, _elements(own)])
                lengths = [piece.stop - piece.start for _, piece in own]
                total = tf.split(tf.add_n(tf.unstack(parts)), lengths)
                for (i, _), part in zip(own, total, strict=True):
                    sums.setdefault(i, []).append(part)
        results = dict(enumerate(tensors))
        for i, its in sums.items():
            whole = tf.cast(tf.concat(its, 0), tensors[i].dtype)
            results[i] = tf.reshape(whole, shapes[i])
        return list(results.values())

    def share(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Send each tensor from one rank to all; see `Collective.share`."""
        moved = [to_move(tf.convert_to_tensor(tensor)) for tensor in tensors]
        own = [
            t for t, root in zip(moved, root_ranks, strict=True) if root == self.rank
        ]
        sent = pack(own) if own else tf.zeros([0], moved[0].dtype)
        order = sorted(range(len(moved)), key=lambda i: root_ranks[i])
        gathered = self._gather(sent, f"share {name}")
        shared = unpack(gathered, [moved[i] for i in order])
        results = dict(zip(order, shared, strict=True))
        return [from_move(results[i], t.dtype) for i, t in enumerate(tensors)]

    def all_to_all(self, tensor: Any, *, name: str) -> Any:
        """Send each rank its row; see `Collective.all_to_all`."""
        moved = [[to_move(tensor)]]
        received = self._run(f"all_to_all {name}", hvd.alltoall, moved)[0]
        return tf.ensure_shape(from_move(received, tensor.dtype), tensor.shape)

    def _leave(self) -> None:
        error, lifeline = getattr(sys, "last_value", None), self._lifeline
        if isinstance(error, self._PEER_ERRORS):
            with suppress(ConnectionError, RuntimeError, TimeoutError):
                lifeline.wait_for_failure()
        failure = lifeline.failure
        if error is not None and failure is not None and failure.text not in str(error):
            # Horovod's error, which ends the program, does not name the lost rank.
            print(f"tfdist: {failure.text}", file=sys.stderr, flush=True)
        super()._leave()
        if not (self._is_everyone or hasattr(sys, "last_value")):
            # When one rank stops, Horovod stops on the ranks of all sets.
            with suppress(Exception):
                hvd.join()
        stop_at_exit()

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        op = {"min": hvd.Min, "max": hvd.Max}.get(reduction, hvd.Sum)
        return self._all_reduce([[tensor] for tensor in tensors], op, name)

    def _all_reduce(
        self,
        messages: list[list[Any]],
        op: Any,
        name: str,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> list[Any]:
        """Combine tensors of one type by a Horovod op, each list in one message."""
        before, after = factors
        scales = {"prescale_factor": before, "postscale_factor": after}

        def reduce(*tensors: Any, **options: Any) -> Any:
            if op == hvd.Adasum:
                # For tensors without a device, Horovod forks TensorFlow to find GPUs.
                with tf.device(local_devices()[0]):
                    tensors = tuple(tf.identity(tensor) for tensor in tensors)
            if len(tensors) == 1:
                return hvd.allreduce(*tensors, op=op, **scales, **options)
            return hvd.grouped_allreduce([*tensors], op=op, **scales, **options)

        what = f"all_reduce {name} {op} {before} {after}"
        dtype = messages[0][0].dtype
        sent = [list(map(without_bfloat16, tensors)) for tensors in messages]
        return [tf.cast(result, dtype) for result in self._run(what, reduce, sent)]

    def _gather(self, tensor: Any, name: str) -> Any:
        return self._run(f"all_gather {name}", hvd.allgather, [[tensor]])[0]

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        root = self.process_set.ranks[root_rank]
        what = f"broadcast {name} from {root}"
        broadcast = partial(hvd.broadcast, root_rank=root)
        return self._run(what, broadcast, [[tensor] for tensor in tensors])

    def _run(
        self, what: str, operation: _Operation, messages: list[list[Any]]
    ) -> list[Any]:
        """Run an operation on the tensors of each message, or add it to the graph."""

        def build(messages: list[list[Any]]) -> list[Any]:
            return [
                result
                for i, tensors in enumerate(messages)
                for result in self._build(f"{what}/{i}", operation, tensors)
            ]

        if not tf.executing_eagerly():
            # The first tensors, as operations do not wait for each other's.
            return self.recorder.traced(what, messages[0], lambda: build(messages))
        # Horovod matches eager operations by order, graph operations by name.
        if what not in self._functions:
            self._functions[what] = tf.function(build, reduce_retracing=True)
        with self.call(what):
            # A graph even under tf.config.run_functions_eagerly.
            function = self._functions[what].get_concrete_function(messages)
            return function(messages)

    def _build(self, what: str, operation: _Operation, tensors: list[Any]) -> list[Any]:
        """Add one operation to the graph."""
        graph = tf.compat.v1.get_default_graph()
        name = re.sub(r"[^A-Za-z0-9]+", "_", what)
        # Horovod ignores scopes, so names must be unique without them. XLA cannot
        # compile the operation, which stays outside of the compiled graph.
        with graph.name_scope(None), tf.xla.experimental.jit_scope(compile_ops=False):
            sent = [prevent_constant_folding(tensor) for tensor in tensors]
            results = operation(*sent, name=name, **self._common)
        results = [*results] if isinstance(results, list | tuple) else [results]
        for result in results:
            # A rank that does not use the result must still take part.
            run_always(result.op)
        return results


def check_process_set(process_set: Any) -> None:
    """Raise `ValueError` unless Horovod knows a process set; None is all ranks."""
    if process_set is None or getattr(process_set, "process_set_id", None) is not None:
        return
    raise ValueError(
        "process_set must be a ProcessSet that Horovod knows. Received: "
        f"{process_set}. Give it to init(process_sets=[...]) on every rank first."
    )


def check_adasum(process_set: Any) -> None:
    """Raise `ValueError` unless Horovod supports Adasum here, or there is one rank."""
    size, is_everyone = process_set.size(), process_set is hvd.global_process_set
    is_power_of_two = size & (size - 1) == 0
    if size > 1 and not (hvd.mpi_enabled() and is_power_of_two and is_everyone):
        who = "all ranks" if is_everyone else "a process set"
        engine = "MPI" if hvd.mpi_enabled() else "Gloo"
        raise ValueError(
            "Adasum needs MPI and a power of two of processes, all in one set. "
            f"Received: {size} processes, {who}, over {engine}. Start 2, 4, 8, ... "
            "with `mpirun`, or use the average."
        )


def _elements(pieces: Sequence[tuple[int, slice]]) -> int:
    """Return the number of elements of pieces."""
    return sum(piece.stop - piece.start for _, piece in pieces)
