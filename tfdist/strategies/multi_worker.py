"""TensorFlow's strategy for several processes, each with one or several devices."""

from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect
from tfdist.collectives import Collective, SingleCollective, TensorFlowCollective
from tfdist.compat import mirrored as compat
from tfdist.compat.tensorflow import cluster_resolver as resolver_of
from tfdist.first_step import check_choice
from tfdist.strategies.base import StepRunner
from tfdist.strategies.builtin import of_devices
from tfdist.strategies.connecting import check_trains, cluster_of, connect


class MultiWorkerMirroredStrategy(
    StepRunner,
    tf.distribute.MultiWorkerMirroredStrategy,  # type: ignore[misc]
):
    """Data parallel training with an equal copy of the model on every device of a job.

    A `tf.distribute.MultiWorkerMirroredStrategy` with the same arguments. In `fit`,
    each device computes the gradients of its rows of the global batch, and the sum over
    all devices of all processes updates each copy. The weights equal those of one
    device, up to rounding, and every wait for another process has a limit.
    `AllReduceStrategy` does the same with one device per process.

    A process uses all GPUs of its host, or the GPU of its local rank if the host runs
    several processes; without GPUs, all logical CPUs. Create the strategy at the start
    of the program, because TensorFlow connects to other processes only while it starts.

    Args:
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver` that
            describes the job. Default None: read from the environment by
            `tfdist.cluster.detect`.
        communication_options: A `tf.distribute.experimental.CommunicationOptions`.
            `bytes_per_pack` is the size of a bucket of gradients in bytes, 0 for the
            default of `AllReduceStrategy`; `timeout_seconds` limits the wait in one
            call, None for 600 seconds; `implementation` selects TensorFlow's transport.
            Default None.
        collective: The engine that connects the processes: "tensorflow", or "mpi" for
            processes with one device each, see `AllReduceStrategy`. Default
            "tensorflow".
        check_first_step: The chief runs the first step after each `compile` again on
            a few rows, whole and in two parts. A difference is a warning ("warn"), an
            error on all ranks ("raise"), or not looked for ("off"). Default "warn".

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation, or if the processes
            have different numbers of devices.
        TimeoutError: If a process is missing after 300 seconds.
        ImportError: If MPI is requested but not installed.
        ValueError: If the cluster is invalid, or an option conflicts with another or
            with the devices.

    Example:
        >>> MultiWorkerMirroredStrategy().num_replicas_in_sync
        1
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: Any = None,
        *,
        collective: str = "tensorflow",
        check_first_step: str = "warn",
    ) -> None:
        check_choice(check_first_step)
        if communication_options is None:
            communication_options = tf.distribute.experimental.CommunicationOptions()
        joined = _connect(cluster_resolver, communication_options, collective)
        self._cluster_resolver = cluster_resolver or resolver_of(detect())
        names = [compat.full_name(device) for device in compat.all_local_devices()]
        if collective == "mpi":
            _check_one_device(names)
        _check_equal_devices(names, joined)
        # TensorFlow's own collectives join devices of one process only, but rank 0
        # registers their groups for all.
        self._collective_key_base = compat.FIRST_GROUP_KEY * (1 + joined.rank)
        bucket_bytes = communication_options.bytes_per_pack or None
        extended = of_devices(self, joined, names, bucket_bytes=bucket_bytes)
        self._start(extended, check_first_step)

    @property
    def cluster_resolver(self) -> Any:
        """The TensorFlow resolver of the cluster."""
        return self._cluster_resolver


def _connect(cluster_resolver: Any, options: Any, collective: str) -> Collective:
    """Connect the processes of a resolver, or of the environment."""
    implementation = options.implementation.value
    if collective == "mpi":
        _check_for_mpi(cluster_resolver, implementation)
        return connect("mpi", **_timeout_of(options))
    if collective != "tensorflow":
        raise ValueError(
            "collective must be 'tensorflow' or 'mpi'. Received: "
            f"collective={collective!r}. Use AllReduceStrategy for the others."
        )
    if implementation == "NCCL" and not tf.config.list_physical_devices("GPU"):
        raise ValueError(
            "communication_options wants NCCL, which needs GPUs. Received: "
            "implementation=NCCL in a process without a GPU. Leave the implementation "
            "out, or use RING."
        )
    how: dict[str, Any] = {
        "communication": implementation.lower(),
        "takes_all_gpus": True,
        **_timeout_of(options),
    }
    if cluster_resolver is None:
        return connect("tensorflow", **how)
    cluster = cluster_of(cluster_resolver)
    check_trains(cluster)
    if cluster.size == 1:
        return SingleCollective()
    return TensorFlowCollective(cluster, **how)


def _timeout_of(options: Any) -> dict[str, Any]:
    """Return the timeout in options, if any, as an argument."""
    seconds = options.timeout_seconds
    return {} if seconds is None else {"timeout_seconds": seconds}


def _check_for_mpi(cluster_resolver: Any, implementation: str) -> None:
    """Raise `ValueError` for arguments that collective='mpi' does not go with."""
    if cluster_resolver is not None or implementation != "AUTO":
        raise ValueError(
            "collective='mpi' joins the processes that the launcher of MPI has "
            f"started, by MPI. Received: cluster_resolver={cluster_resolver}, "
            f"implementation={implementation}. Leave both out, or use "
            "collective='tensorflow'."
        )


def _check_one_device(devices: list[str]) -> None:
    """Raise `ValueError` unless this process has one device, as MPI needs."""
    if len(devices) > 1:
        raise ValueError(
            "collective='mpi' joins processes with one device each. Received: "
            f"{len(devices)} devices in this process. Start a process for each device, "
            "or use collective='tensorflow'."
        )


def _check_equal_devices(devices: list[str], collective: Collective) -> None:
    """Raise `RuntimeError` unless all processes have equally many devices."""
    counts = collective.exchange("devices", len(devices))
    if len(set(counts)) > 1:
        raise RuntimeError(
            "Every process must have as many devices as the others. Received: "
            f"{counts} by rank. Hide some with tf.config.set_visible_devices, or with "
            "CUDA_VISIBLE_DEVICES."
        )
