"""TensorFlow's strategy of several processes, each with one or several devices."""

import json
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect
from tfdist.collectives import Collective, SingleCollective, TensorFlowCollective
from tfdist.compat import mirrored as compat
from tfdist.compat.keras import install
from tfdist.compat.tensorflow import cluster_resolver as resolver_of
from tfdist.gradients import BUCKET_BYTES
from tfdist.strategies.base import StepRunner
from tfdist.strategies.builtin import of_devices
from tfdist.strategies.connecting import check_trains, connect


class MultiWorkerMirroredStrategy(
    StepRunner,
    tf.distribute.MultiWorkerMirroredStrategy,  # type: ignore[misc]
):
    """Trains a copy of the model on each device of each process, all of them equal.

    It takes the arguments of `tf.distribute.MultiWorkerMirroredStrategy` and is one. In
    `fit` each device computes the gradients of its rows of the global batch; the sum
    over all devices of all processes updates each copy. It ends with the weights that
    one device ends with, to rounding, and waits for no process without a limit: see
    `AllReduceStrategy`, which is the same for one device in each process.

    A process takes all GPUs of its host, or the one of its local rank where there are
    several processes; without a GPU all logical CPUs. It is made first thing in a
    program, because TensorFlow takes up other processes only while it starts.

    Args:
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver` that says
            who takes part. Default None: what `tfdist.cluster.detect` finds, TF_CONFIG
            or a scheduler.
        communication_options: A `tf.distribute.experimental.CommunicationOptions`:
            `bytes_per_pack` is how many bytes of gradients travel together, 0 for 25
            MiB; `timeout_seconds` how long a process may wait in one call, None for
            600; `implementation` what TensorFlow is to use. Default None.

    Raises:
        OSError: If this process cannot listen at its own address.
        RuntimeError: If TensorFlow has already run an operation, or if the processes
            have different numbers of devices.
        TimeoutError: If a process is missing after 300 seconds.
        ValueError: If the cluster is wrong, or NCCL is wanted without a GPU.

    Example:
        >>> MultiWorkerMirroredStrategy().num_replicas_in_sync
        1
    """

    _collective_key_base = compat.FIRST_GROUP_KEY

    def __init__(
        self, cluster_resolver: Any = None, communication_options: Any = None
    ) -> None:
        if communication_options is None:
            communication_options = tf.distribute.experimental.CommunicationOptions()
        collective = _connect(cluster_resolver, communication_options)
        self._cluster_resolver = cluster_resolver or resolver_of(detect())
        names = [compat.full_name(device) for device in compat.all_local_devices()]
        _check_equal_devices(names, collective)
        extended = of_devices(
            self,
            collective,
            names,
            bucket_bytes=communication_options.bytes_per_pack or BUCKET_BYTES,
        )
        tf.distribute.Strategy.__init__(self, extended)
        install(is_alone=collective.size == 1)

    @property
    def cluster_resolver(self) -> Any:
        """The resolver of the cluster, for TensorFlow."""
        return self._cluster_resolver


def _connect(cluster_resolver: Any, options: Any) -> Collective:
    """Join the processes that a resolver, or the environment, tells of."""
    implementation = options.implementation.value
    if implementation == "NCCL" and not tf.config.list_physical_devices("GPU"):
        raise ValueError(
            "communication_options wants NCCL, which needs GPUs. Received: "
            "implementation=NCCL in a process without a GPU. Leave the implementation "
            "out, or use RING."
        )
    how: dict[str, Any] = {
        "communication": implementation.lower(),
        "takes_all_gpus": True,
    }
    if options.timeout_seconds is not None:
        how["timeout_seconds"] = options.timeout_seconds
    if cluster_resolver is None:
        return connect("tensorflow", **how)
    cluster = detect({"TF_CONFIG": _tf_config_of(cluster_resolver)})
    check_trains(cluster)
    if cluster.size == 1:
        return SingleCollective()
    return TensorFlowCollective(cluster, **how)


def _tf_config_of(cluster_resolver: Any) -> str:
    """Write down what a resolver of TensorFlow tells, for all to be checked."""
    jobs = cluster_resolver.cluster_spec().as_dict()
    if not jobs:
        return ""
    task = {"type": cluster_resolver.task_type, "index": cluster_resolver.task_id}
    return json.dumps({"cluster": jobs, "task": task})


def _check_equal_devices(devices: list[str], collective: Collective) -> None:
    """Refuse processes with different numbers of devices: each has an equal share."""
    counts = collective.exchange("devices", len(devices))
    if len(set(counts)) > 1:
        raise RuntimeError(
            "Every process must have as many devices as the others. Received: "
            f"{counts} by rank. Hide some with tf.config.set_visible_devices, or with "
            "CUDA_VISIBLE_DEVICES."
        )
