"""TensorFlow's own collective ops: a ring over gRPC, NCCL on GPUs."""

from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster.model import Cluster
from tfdist.collectives.monitored import MonitoredCollective
from tfdist.collectives.ops import FlatOps, Group
from tfdist.collectives.wire_format import TypedCollective, pack, padded_rows, unpack
from tfdist.compat import tensorflow as compat
from tfdist.devices import pin
from tfdist.rendezvous.roll_call import (
    TIMEOUT_SECONDS,
    call_roll,
)


class FlatCollective(TypedCollective):
    """Packs tensors of one type into a flat one, for the `FlatOps` of a subclass."""

    _ops: FlatOps

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        return unpack(self._ops.reduce(pack(tensors), reduction, name), tensors)

    def _gather(self, tensor: Any, name: str) -> Any:
        """Pad the rows to the same number on all ranks, and cut the padding off."""
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
    """Connects the processes of a cluster through TensorFlow itself.

    It needs no other software. Create it before TensorFlow runs its first operation,
    because TensorFlow connects to other processes only while it starts. On a host with
    several GPUs, the process uses the one of its local rank. Tensors of one type in one
    call are sent as one.

    Args:
        cluster: The members of the job; this process must be one that trains.
        start_timeout_seconds: How long to wait for the last process to join.
            Default 300.
        timeout_seconds: How long a rank may wait for the others in one call; longer
            than any work that one rank does alone. Default 600.
        communication: The transport of TensorFlow, "auto", "ring" or "nccl".
            Default "auto".
        takes_all_gpus: Whether the process uses all GPUs, if it has the host to
            itself, instead of the one of its local rank. Default False.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation, or if processes
            have the same task or different clusters.
        TimeoutError: If a process has not joined when the time is over.
        ValueError: If a host has several GPUs, but fewer than processes.
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
        self._ops = FlatOps(
            self.rank,
            self.size,
            device,
            self.call,
            self.traced,
            Group(communication=communication),
        )
