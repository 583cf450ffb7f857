"""TensorFlow's own collectives: a ring over gRPC, or NCCL on GPUs."""

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster.model import Cluster
from tfdist.collectives.monitored import MonitoredCollective
from tfdist.collectives.ops import FlatOps
from tfdist.collectives.wire_format import (
    TypedCollective,
    from_move,
    pack,
    padded_rows,
    to_move,
    unpack,
)
from tfdist.compat import tensorflow as compat
from tfdist.devices import pin
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
    host. `communication` is TensorFlow's transport: "auto", "ring" or "nccl".
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
        if not (takes_all_gpus and cluster.local_size == 1):
            pin(cluster.local_rank, cluster.local_size)
        lifeline, hub = call_roll(
            cluster,
            compat.abort_collectives,
            start_timeout_seconds=start_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        device = compat.start_collectives(cluster.addresses, cluster.rank)
        super().__init__(cluster.rank, cluster.size, lifeline, hub)
        self.communication = communication
        self._ops = FlatOps(self, device, communication=communication)

    def all_to_all(self, tensor: Any, *, name: str) -> Any:
        """Send each rank its row; see `Collective.all_to_all`."""
        return from_move(self._ops.all_to_all(to_move(tensor), name), tensor.dtype)
