"""Collectives whose ranks are the devices of all processes."""

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, join_slices
from tfdist.collectives.ops import FlatOps
from tfdist.collectives.tensorflow import FlatCollective
from tfdist.compat.mirrored import is_in_loop, may_meet
from tfdist.recorder.ring import Unrecorded

# Group 1 is the processes, group 2 the devices of several processes. Groups of
# TensorFlow's own strategies start at `compat.mirrored.FIRST_GROUP_KEY`.
_GROUP_KEY = 2
# Keys of sets of devices of one process start here.
_FIRST_KEY_OF_SETS = 2**30


class ReplicaCollective(FlatCollective):
    """The collective of one of several devices of a process.

    In a graph, each device has its own part of every collective op. Eagerly, the
    replicas of a process run one after the other and cannot wait for each other: they
    meet in a merge call, and the collective of the processes communicates for them.
    With `meets`, the strategy's cross-device ops sum floats, except in branches and
    loops. The default of `communication` gives GPUs NCCL, and other devices a ring in
    the order that NCCL needs.
    """

    def __init__(
        self,
        processes: Collective,
        number: int,
        devices: Sequence[str],
        *,
        meets: bool = False,
        communication: str = "nccl",
    ) -> None:
        self._meets = meets
        self._processes = processes
        # Branches of replicas that write to one record would wait for each other.
        self.recorder = Unrecorded() if number else processes.recorder
        self.rank = processes.rank * len(devices) + number
        self.size = processes.size * len(devices)
        self._ops = FlatOps(
            self,
            devices[number],
            group_key=_group_key(processes.size, devices),
            communication=communication,
        )

    def all_reduce(
        self, tensors: Sequence[Any], reduction: str = "sum", *, name: str
    ) -> list[Any]:
        """Combine tensors over all replicas; see `Collective.all_reduce`."""
        if self._meets and _is_for_ops(tensors, reduction):
            return self._reduce_by_ops(tensors)
        if not tf.executing_eagerly():
            _check_can_exchange()
            return super().all_reduce(tensors, reduction, name=name)

        def reduce(by_replica: list[list[Any]]) -> list[Any]:
            parts = zip(*by_replica, strict=True)
            sums = [_reduce_here(each, reduction) for each in parts]
            way = "sum" if reduction == "mean" else reduction
            totals = self._processes.all_reduce(sums, way, name=name)
            if reduction == "mean":
                totals = [self._divide(total) for total in totals]
            return totals

        return self._met(list(tensors), reduce)

    def all_gather(self, tensor: Any, *, name: str) -> Any:
        """Concatenate the rows of all replicas; see `Collective.all_gather`."""
        if not tf.executing_eagerly():
            _check_can_exchange()
            return super().all_gather(tensor, name=name)

        def gather(by_replica: list[list[Any]]) -> list[Any]:
            rows = tf.concat([each for (each,) in by_replica], 0)
            return [self._processes.all_gather(rows, name=name)]

        return self._met([tensor], gather)[0]

    def broadcast(
        self, tensors: Sequence[Any], root_rank: int = 0, *, name: str
    ) -> list[Any]:
        """Send the tensors of one replica to all; see `Collective.broadcast`."""
        if not tf.executing_eagerly():
            _check_can_exchange()
            return super().broadcast(tensors, root_rank, name=name)

        def broadcast(by_replica: list[list[Any]]) -> list[Any]:
            process, number = divmod(root_rank, len(by_replica))
            return self._processes.broadcast(by_replica[number], process, name=name)

        return self._met(list(tensors), broadcast)

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Gather a small value from all ranks; see `Collective.exchange`.

        While tracing, the replicas of a process run the same code one after the other,
        so the values are one per process.
        """
        if not tf.executing_eagerly() or not joint:
            return self._processes.exchange(name, value, joint=joint)

        # A namespace hides the structure of a value from TensorFlow.
        def exchange(strategy: Any, boxes: Any) -> SimpleNamespace:
            mine = [box.value for box in strategy.experimental_local_results(boxes)]
            by_process = self._processes.exchange(name, mine)
            return SimpleNamespace(value=[one for their in by_process for one in their])

        replica = tf.distribute.get_replica_context()
        met = replica.merge_call(exchange, args=(SimpleNamespace(value=value),))
        return list(met.value)

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all processes; see `Collective.barrier`."""
        self._processes.barrier(name)

    def call(self, what: str) -> AbstractContextManager[None]:
        """Mark a section in which ranks may wait; see `Collective.call`."""
        return self._processes.call(what)

    def _reduce_by_ops(self, tensors: Sequence[Any]) -> list[Any]:
        """Sum tensors by the strategy's cross-device ops."""

        def meet(strategy: Any, *by_replica: Any) -> tuple[Any, ...]:
            pairs = [(value, value) for value in by_replica]
            operation = tf.distribute.ReduceOp.SUM
            return tuple(strategy.extended.batch_reduce_to(operation, pairs))

        replica = tf.distribute.get_replica_context()
        return list(replica.merge_call(meet, args=tuple(tensors)))

    def _met(
        self, tensors: list[Any], act: Callable[[list[list[Any]]], list[Any]]
    ) -> list[Any]:
        """Merge the replicas of this process, and give all of them the same results."""

        def meet(strategy: Any, *by_replica: Any) -> tuple[Any, ...]:
            parts = [strategy.experimental_local_results(each) for each in by_replica]
            return tuple(act([list(each) for each in zip(*parts, strict=True)]))

        context = tf.distribute.get_replica_context()
        met = context.merge_call(meet, args=tuple(tensors))
        return list(met)


def _check_can_exchange() -> None:
    """Raise `ValueError` in a loop within a replica."""
    if not may_meet() and is_in_loop():
        # TensorFlow matches collectives by the loop, and each replica has its own.
        raise ValueError(
            "The devices of one process cannot exchange values in a loop of a graph. "
            "Received: a tf.while_loop, tf.scan or tf.map_fn that applies an optimizer "
            "or reduces values. Write `for _ in range(n)`, or use AllReduceStrategy "
            "with a process for each device."
        )


def _group_key(processes: int, devices: Sequence[str]) -> int:
    """Return the key of a group, which differs between sets of devices of a process."""
    if processes > 1:
        return _GROUP_KEY
    return _FIRST_KEY_OF_SETS + zlib.crc32(",".join(devices).encode()) % 2**30


def _is_for_ops(tensors: Sequence[Any], reduction: str) -> bool:
    """Return whether cross-device ops can do this reduction here."""
    return (
        reduction == "sum"
        and (tf.executing_eagerly() or may_meet())
        and all(isinstance(each, tf.Tensor) for each in tensors)
        and all(each.dtype.is_floating for each in tensors)
    )


def _reduce_here(values: Sequence[Any], reduction: str) -> Any:
    """Combine the values of the replicas of this process; "mean" gives the sum."""
    if isinstance(values[0], tf.IndexedSlices):
        return join_slices(values)
    stacked = tf.stack([tf.convert_to_tensor(each) for each in values])
    combine = {"min": tf.reduce_min, "max": tf.reduce_max}.get(reduction, tf.reduce_sum)
    return combine(stacked, 0)
