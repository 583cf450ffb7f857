"""TensorFlow's own collective ops: a ring over gRPC, NCCL where there are GPUs."""

from typing import Any, ClassVar

import tensorflow as tf

from tfdist.cluster.model import Cluster
from tfdist.cluster.roll_call import (
    START_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    call_roll,
)
from tfdist.collectives.devices import use_own_gpu
from tfdist.collectives.linked import LinkedCollective
from tfdist.collectives.ops import FlatOps
from tfdist.collectives.packing import pack, padded_rows, unpack
from tfdist.compat import tensorflow as compat


class TensorFlowCollective(LinkedCollective):
    """Connects the processes of a cluster through TensorFlow itself.

    Nothing else need be installed. It must be made before TensorFlow runs its first
    operation, because TensorFlow takes up other processes only while it starts. Where
    a host has several GPUs, the process keeps to the one of its local rank. Tensors of
    one type that are given together travel together, as one.

    Args:
        cluster: Who takes part; this process must be one of those that train.
        start_timeout_seconds: How long to wait for the last process to come.
            Default 300.
        timeout_seconds: How long a rank may wait for the others in one call; longer
            than any work that one rank does alone. Default 600.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation, or if processes
            have the same task or different clusters.
        TimeoutError: If a process is missing when the time is over.
        ValueError: If there are several GPUs on a host, and fewer than processes.
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
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        compat.check_not_started()
        use_own_gpu(cluster.local_rank, cluster.local_size)
        lifeline, hub = call_roll(
            cluster,
            compat.abort_collectives,
            start_timeout_seconds=start_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )
        device = compat.start_collectives(cluster.addresses, cluster.rank)
        super().__init__(cluster.rank, cluster.size, lifeline, hub)
        self._ops = FlatOps(self.rank, self.size, device, self.call, lifeline.traced)

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        return unpack(self._ops.reduce(pack(tensors), reduction, name), tensors)

    def _gather(self, tensor: Any, name: str) -> Any:
        """Join rows padded to one number, and leave the padding out again."""
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
