"""TensorFlow's own collective ops: a ring over gRPC, NCCL where there are GPUs."""

from typing import ClassVar

import tensorflow as tf

from tfdist.cluster.model import Cluster
from tfdist.collectives.flat import FlatMoves
from tfdist.collectives.linked import LinkedCollective
from tfdist.collectives.ops import FlatOps, Group
from tfdist.compat import tensorflow as compat
from tfdist.devices import pin
from tfdist.rendezvous.roll_call import (
    TIMEOUT_SECONDS,
    call_roll,
)


class TensorFlowCollective(FlatMoves, LinkedCollective):
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
        communication: What TensorFlow is to use, "auto", "ring" or "nccl".
            Default "auto".
        takes_all_gpus: Whether the process takes all GPUs, if it has the host to
            itself, and not the one of its local rank. Default False.

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
