"""Horovod's collectives: Gloo, MPI or NCCL, whichever it was built with."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.collectives.base import FusingCollective
from tfdist.collectives.dtypes import without_bfloat16
from tfdist.collectives.horovod.ops import HorovodOps, How
from tfdist.collectives.horovod.peers import (
    gather_guests,
    stop,
    stop_at_exit,
)
from tfdist.collectives.linked import LinkedCollective
from tfdist.devices import pin
from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS, meet, start_timeout


class HorovodCollective(LinkedCollective, FusingCollective):
    """Connects the processes that `horovodrun`, `mpirun` or `tfdist run` has started.

    Every tensor sets out by itself as soon as it is there; Horovod joins those that
    wait at the same time, while the rest is still computed. Where a host has several
    GPUs, the process keeps to the one of its local rank.

    Args:
        process_set: The ranks that take part, a `horovod.ProcessSet` that this process
            belongs to. Default None: all.
        start_timeout_seconds: How long to wait for the last process, once Horovod has
            started on all. Default 300.
        timeout_seconds: How long a rank may wait for the others in one call; longer
            than any work that one rank does alone. Default 600.

    Raises:
        RuntimeError: If TensorFlow has already started the GPUs of the others.
        TimeoutError: If a process does not come, or cannot be reached.
        TypeError: If the process set is none.
        ValueError: If this process is not in the process set; if there are several
            GPUs on a host, and fewer than processes.
    """

    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]] = (
        # What Horovod says of all that ends while tensors are on their way.
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
        pin(hvd.local_rank(), hvd.local_size())
        check_process_set(process_set)
        self.process_set = (
            hvd.global_process_set if process_set is None else process_set
        )
        _check_included(self.process_set)
        rank = self.process_set.rank()
        start_timeout_seconds = start_timeout(start_timeout_seconds)
        guests, door = gather_guests(self.process_set, start_timeout_seconds)
        lifeline, hub = meet(
            rank,
            guests,
            door,
            stop,
            start_timeout_seconds=start_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        super().__init__(rank, len(guests), lifeline, hub)
        self._is_everyone = self.process_set is hvd.global_process_set
        self._ops = HorovodOps(self.process_set, self.call, lifeline.traced)

    def check_op(self, op: str) -> None:
        """Refuse Adasum where Horovod has none; see `FusingCollective.check_op`."""
        if op != "adasum":
            return
        is_power_of_two = self.size & (self.size - 1) == 0
        if not (hvd.mpi_enabled() and is_power_of_two and self._is_everyone):
            who = "all ranks" if self._is_everyone else "a process set"
            engine = "MPI" if hvd.mpi_enabled() else "Gloo"
            raise ValueError(
                "op='adasum' needs MPI and a power of two of processes, all in one "
                f"set. Received: {self.size} processes, {who}, over {engine}. Start 2, "
                "4, 8, ... with `mpirun`, or use op='average'."
            )

    def all_reduce_as(
        self,
        tensors: Sequence[Any],
        op: str,
        *,
        name: str,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> list[Any]:
        """Combine tensors as a group; see `FusingCollective.all_reduce_as`."""
        # The grouped form of Adasum fails in Horovod, which combines each by itself.
        is_adasum = op == "adasum"
        how = How(
            hvd.Adasum if is_adasum else hvd.Sum, *factors, is_group=not is_adasum
        )
        return self._send(tensors, how, name)

    def _leave(self, hub: Hub | None) -> None:
        super()._leave(hub)
        if not (self._is_everyone or hasattr(sys, "last_value")):
            # With one rank Horovod stops on all, whatever set they are in.
            with suppress(Exception):
                hvd.join()
        stop_at_exit()

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        op = {"min": hvd.Min, "max": hvd.Max}.get(reduction, hvd.Sum)
        return self._send(tensors, How(op), name)

    def _send(self, tensors: Sequence[Any], how: How, name: str) -> list[Any]:
        """Reduce tensors of one type."""
        dtype = tensors[0].dtype
        results = self._ops.reduce(list(map(without_bfloat16, tensors)), how, name)
        return [tf.cast(result, dtype) for result in results]

    def _gather(self, tensor: Any, name: str) -> Any:
        return self._ops.gather(tensor, name)

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        return self._ops.broadcast(tensors, root_rank, name)


def check_process_set(process_set: Any) -> None:
    """Refuse what is no process set of Horovod, nor None.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(process_set, hvd.ProcessSet | None):
        raise TypeError(
            "process_set must be a ProcessSet of Horovod. Received: "
            f"process_set={process_set!r}. Make one of the ranks, and give it to "
            "init(process_sets=[...]) on every rank first."
        )


def _check_included(process_set: Any) -> None:
    """Refuse a process set that leaves this process out, or that is not known yet."""
    if process_set.process_set_id is None:
        raise ValueError(
            "process_set must be known to Horovod. Received: "
            f"{process_set}. Give it to init(process_sets=[...]) on every rank first."
        )
    if not process_set.included():
        raise ValueError(
            "process_set must include the process that trains with it. Received: "
            f"{process_set} on rank {hvd.rank()}. Give each rank the set that it is in."
        )
