"""TensorFlow's own collectives: NCCL between GPUs, or a ring over gRPC."""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster.launcher import start_timeout
from tfdist.cluster.model import Cluster
from tfdist.cluster.ownership import take_rank
from tfdist.collectives.monitored import MonitoredCollective
from tfdist.collectives.ops import FlatOps, try_nccl
from tfdist.collectives.wire_format import (
    TypedCollective,
    from_move,
    pack,
    padded_rows,
    to_move,
    unpack,
)
from tfdist.compat import tensorflow as compat
from tfdist.devices import cards, pin
from tfdist.liveness.lifeline import monitor
from tfdist.rendezvous.roll_call import TIMEOUT_SECONDS, call_roll


class FlatCollective(TypedCollective):
    """A collective that packs tensors of one type into a flat one for its `FlatOps`."""

    _ops: FlatOps

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        return unpack(self._ops.reduce(pack(tensors), reduction, name), tensors)

    def reduce(
        self, tensors: Sequence[Any], root_ranks: Sequence[int], *, name: str
    ) -> list[Any]:
        """Sum each tensor on one rank; see `Collective.reduce`."""
        if self.size != 2:
            return super().reduce(tensors, root_ranks, name=name)
        # Half the bytes of an all-reduce: each rank sends what the other needs.
        theirs = self.share(tensors, [1 - root for root in root_ranks], name=name)
        return [
            own + other if root == self.rank else own
            for own, other, root in zip(tensors, theirs, root_ranks, strict=True)
        ]

    def _gather(self, tensor: Any, name: str) -> Any:
        """Gather rows, padded for the transfer to the same number on all ranks."""
        shape = tf.shape(tensor)
        counts = tf.reshape(self._ops.gather(shape[:1], f"{name}/rows"), [-1])
        rows = padded_rows(tf.reduce_max(counts))
        padding = [[0, rows - shape[0]]] + [[0, 0]] * (tensor.shape.rank - 1)
        flat = tf.reshape(tf.pad(tensor, padding), [-1])
        blocks = self._ops.gather(flat, name)
        blocks = tf.reshape(blocks, tf.concat([[self.size, rows], shape[1:]], 0))
        return tf.boolean_mask(blocks, tf.sequence_mask(counts, rows))

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        return unpack(self._ops.broadcast(pack(tensors), root_rank, name), tensors)


class TensorFlowCollective(FlatCollective, MonitoredCollective):
    """A collective of a cluster's processes, connected by TensorFlow itself.

    Create it before TensorFlow runs its first operation, because TensorFlow connects to
    other processes only while it starts. On a host with several GPUs, a process uses
    the GPU of its local rank; or all, with `takes_all_gpus`, if it is alone on the
    host. `communication` is TensorFlow's transport: "nccl", "ring", which goes through
    the memory of the hosts, or "auto": NCCL if each rank has a GPU of its own and NCCL
    starts.
    """

    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]] = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )

    def __init__(
        self,
        cluster: Cluster,
        *,
        start_timeout_seconds: float | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        communication: str = "auto",
        takes_all_gpus: bool = False,
    ) -> None:
        compat.check_not_started()
        take_rank(cluster.rank, cluster.size)
        if not (takes_all_gpus and cluster.local_size == 1):
            pin(cluster.local_rank, cluster.local_size)
        met = call_roll(cluster, start_timeout_seconds=start_timeout_seconds)
        lifeline = monitor(met, compat.abort_collectives, timeout_seconds)
        compat.start_collectives(cluster.addresses, cluster.rank)
        super().__init__(cluster.rank, cluster.size, lifeline)
        if communication == "auto":
            is_one_host = cluster.local_size == cluster.size
            seconds = start_timeout(start_timeout_seconds)
            communication = self._choose(seconds, is_one_host=is_one_host)
        self.communication = communication
        # A process of several GPUs has other collectives for them.
        is_on_gpu = communication == "nccl" and len(cards()) == 1
        device = compat.local_devices("GPU" if is_on_gpu else "CPU")[0]
        self._ops = FlatOps(self, device, communication=communication)

    def _choose(self, seconds: float, *, is_one_host: bool) -> str:
        """Return "nccl" if each rank has a GPU of its own and NCCL starts in time."""
        by_rank = self.exchange("GPUs", cards())
        choice, reason = choose_transport(by_rank)
        if choice == "nccl":
            size = sum(map(len, by_rank))
            failures = self.exchange("start of NCCL", _try_nccl(size, seconds))
            if not (reason := next(filter(None, failures), "")):
                return "nccl"
            compat.restart_collectives()
            self.barrier("restart of collectives")
            reason = f"NCCL does not start ({reason}); NCCL_DEBUG=INFO shows more"
        elif reason:
            reason = f"NCCL needs a GPU for each rank, and {reason}"
        if reason and self.rank == 0:
            can_be_mpi = is_one_host and max(map(len, by_rank)) == 1
            advice = " `tfdist run --collective mpi` is faster." if can_be_mpi else ""
            print(
                f"tfdist: {reason}. TensorFlow's ring joins the ranks, through the "
                f"memory of the hosts.{advice}",
                file=sys.stderr,
            )
        return "ring"

    def all_to_all(self, tensor: Any, *, name: str) -> Any:
        """Send each rank its row; see `Collective.all_to_all`."""
        return from_move(self._ops.all_to_all(to_move(tensor), name), tensor.dtype)


def choose_transport(cards: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return "nccl" or "ring" for the GPUs of each rank, and why not NCCL.

    NCCL joins GPUs if each logical GPU of each rank is a card of its own.

    Args:
        cards: For each rank, a name of the card of each of its logical GPUs.
    """
    owners: dict[str, int] = {}
    for rank, of_rank in enumerate(cards):
        for card in of_rank:
            other = owners.setdefault(card, rank)
            if other == rank and of_rank.count(card) > 1:
                return "ring", f"rank {rank} has split a GPU"
            if other != rank:
                return "ring", f"ranks {other} and {rank} share a GPU"
    without = [rank for rank, of_rank in enumerate(cards) if not of_rank]
    if without and owners:
        return "ring", f"rank {without[0]} has none"
    return ("nccl" if owners else "ring"), ""


def _try_nccl(size: int, seconds: float) -> str:
    """Return why NCCL does not sum a number over all GPUs; "" if it does."""
    try:
        try_nccl(compat.local_devices(), size, seconds)
    except tf.errors.OpError as error:
        return " ".join(error.message.split())[:200]
    return ""
