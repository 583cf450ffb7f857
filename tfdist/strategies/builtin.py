"""TensorFlow's own strategies, corrected for Keras 3."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.cluster.detect import detect
from tfdist.collectives.base import Collective
from tfdist.collectives.single import SingleCollective
from tfdist.collectives.tensorflow import TensorFlowCollective
from tfdist.compat import mirrored as compat
from tfdist.compat.keras.compile_checks import options_done_wrong
from tfdist.compat.keras.install import install
from tfdist.compat.tensorflow import cluster_resolver as resolver_of
from tfdist.first_step.check import check_choice
from tfdist.gradients.reducer import GradientReducer
from tfdist.strategies.base import StepRunner
from tfdist.strategies.connecting import check_trains, cluster_of, connect
from tfdist.strategies.mirrored.extended import (
    CentralStorageExtended,
    MirroredReplicasExtended,
)
from tfdist.strategies.process_replica import ProcessReplicaExtended


class MirroredStrategy(StepRunner, tf.distribute.MirroredStrategy):
    """Data parallel training with an equal copy of the model on each local device.

    A `tf.distribute.MirroredStrategy` with the same arguments. In `fit`, each device
    computes the gradients of its rows of the global batch, and the sum over all devices
    updates each copy. The weights equal those of one device, up to rounding, with any
    optimizer. Metrics and logs, also those of batches, cover all rows.

    The default devices are the GPUs of this machine, or else its CPUs. TensorFlow has
    one CPU device unless `tfdist.devices.split` divides it.

    Args:
        devices: The devices, such as ["GPU:0", "GPU:1"]. Default None: all GPUs, or
            else all logical CPUs.
        cross_device_ops: The algorithm that sums values over the devices, such as
            `tf.distribute.HierarchicalCopyAllReduce()`. TensorFlow's collectives
            replace it in branches and loops, where none of these can run, for example
            with gradient accumulation. Default None: TensorFlow's collectives
            everywhere.
        check_first_step: The chief runs the first step after each `compile` again on
            a few rows, whole and in two parts. A difference is a warning ("warn"), an
            error on all ranks ("raise"), or not looked for ("off"). Default "warn".

    Raises:
        ValueError: If a device does not exist, or is given twice.

    Example:
        >>> import keras, numpy as np
        >>> strategy = MirroredStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile(optimizer="sgd", loss="mse")
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    """

    _collective_key_base = compat.FIRST_GROUP_KEY

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: Any = None,
        *,
        check_first_step: str = "warn",
    ) -> None:
        names = full_names("devices", devices)
        extended = of_devices(self, SingleCollective(), names, cross_device_ops)
        self._start(extended, check_first_step)


class CentralStorageStrategy(
    StepRunner,
    tf.distribute.experimental.CentralStorageStrategy,
):
    """Data parallel training with the weights on one device of a process.

    A `tf.distribute.experimental.CentralStorageStrategy` with the same arguments. Each
    device computes the gradients of its rows, and their sum updates the only copy of
    the weights. The weights equal those of one device, up to rounding. The state of the
    optimizer takes memory only on the device of the weights; in return, each step
    copies the weights to every device.

    Args:
        compute_devices: The devices that compute. Default None: all GPUs, or else all
            logical CPUs.
        parameter_device: The device of the weights. Default None: the CPU, or the
            compute device if there is only one.
        check_first_step: The chief runs the first step after each `compile` again on
            a few rows, whole and in two parts. A difference is a warning ("warn"), an
            error on all ranks ("raise"), or not looked for ("off"). Default "warn".

    Raises:
        ValueError: If a device does not exist, or is given twice.

    Example:
        >>> CentralStorageStrategy().num_replicas_in_sync
        1
    """

    _collective_key_base = compat.FIRST_GROUP_KEY

    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
        *,
        check_first_step: str = "warn",
    ) -> None:
        names = full_names("compute_devices", compute_devices)
        if parameter_device is not None:
            (place,) = full_names("parameter_device", [parameter_device])
        else:
            place = names[0] if len(names) == 1 else compat.full_name("CPU:0")
        extended = of_devices(self, SingleCollective(), names, place=place)
        self._start(extended, check_first_step)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Distribute a dataset; see `tf.distribute.Strategy`."""
        # That of `tf.distribute.experimental.CentralStorageStrategy` fails on options.
        distribute = tf.distribute.Strategy.experimental_distribute_dataset
        return distribute(self, dataset, options)

    def check_compiled(self, model: Any) -> None:
        """Raise an error if XLA would have to compile steps over several devices.

        Args:
            model: A model that has just been compiled.

        Raises:
            ValueError: If it was compiled with `jit_compile=True`.
        """
        if model.jit_compile and self.num_replicas_in_sync > 1:
            raise ValueError(
                "XLA cannot compile a step whose weights are on another device. "
                "Received: jit_compile=True under CentralStorageStrategy. Leave it "
                "out, or use MirroredStrategy, where every device has a copy."
            )


class OneDeviceStrategy(StepRunner, tf.distribute.OneDeviceStrategy):
    """Training on one device, without overhead.

    A `tf.distribute.OneDeviceStrategy` with the same argument.

    Args:
        device: The device, such as "GPU:0".

    Raises:
        ValueError: If the device does not exist.

    Example:
        >>> OneDeviceStrategy("CPU:0").num_replicas_in_sync
        1
    """

    def __init__(self, device: str) -> None:
        (name,) = full_names("device", [device])
        self._start(of_devices(self, SingleCollective(), [name]))


def full_names(argument: str, devices: Sequence[str] | None) -> list[str]:
    """Return the full names of devices, after checks; for None, of all devices here."""
    if devices is None:
        return [compat.full_name(device) for device in compat.all_local_devices()]
    names = [compat.full_name(device) for device in devices]
    there = [compat.full_name(one.name) for one in tf.config.list_logical_devices()]
    if not names or len(set(names)) < len(names) or not set(names) <= set(there):
        short = ", ".join(name.rpartition("/device:")[2] for name in there)
        raise ValueError(
            f"{argument} must name devices of this process, each once. Received: "
            f"{argument}={list(devices)!r}; there are {short}. Split one into several "
            "with tfdist.devices.split, before TensorFlow starts."
        )
    return names


class TPUStrategy(tf.distribute.TPUStrategy):
    """TensorFlow's TPU strategy, with errors for options that fail silently in Keras 3.

    A `tf.distribute.TPUStrategy` with the same arguments. TensorFlow and Keras run the
    steps unchanged, because a TPU lacks the collectives that tfdist uses elsewhere.
    Compiling a model raises an error for options that Keras 3 applies wrongly on a TPU:
    clipping, which happens before the sum over replicas; loss scaling, which checks a
    single replica; gradient accumulation; and moving averages of weights.

    This strategy has not been tested on a TPU.

    Args:
        tpu_cluster_resolver: See `tf.distribute.TPUStrategy`. Default None.
        experimental_device_assignment: See there. Default None.
        experimental_spmd_xla_partitioning: See there. Default False.

    Raises:
        RuntimeError: If TensorFlow is not connected to a TPU.
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        experimental_device_assignment: Any = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        if not tf.config.list_logical_devices("TPU"):
            raise RuntimeError(
                "TPUStrategy needs a TPU that TensorFlow has been connected to. "
                "Received: no logical device of type TPU. Call tf.config."
                "experimental_connect_to_cluster(resolver) and tf.tpu.experimental."
                "initialize_tpu_system(resolver) first; on other devices use "
                "MirroredStrategy."
            )
        super().__init__(
            tpu_cluster_resolver,
            experimental_device_assignment,
            experimental_spmd_xla_partitioning,
        )
        install(is_alone=True)

    def check_compiled(self, model: Any) -> None:
        """Raise an error for options that Keras 3 applies wrongly under this strategy.

        Args:
            model: A model that has just been compiled.

        Raises:
            ValueError: If its optimizer clips, scales the loss, accumulates gradients
                or averages weights.
        """
        wrong = options_done_wrong(model)
        if wrong:
            raise ValueError(
                "Keras 3 cannot do this right on the replicas of a TPU. Received: an "
                f"optimizer with {', '.join(wrong)}. Leave it out, or train on GPUs "
                "under MirroredStrategy."
            )


def of_devices(
    strategy: Any,
    collective: Collective,
    devices: Sequence[str],
    cross_device_ops: Any = None,
    *,
    bucket_bytes: int | None = None,
    place: str | None = None,
) -> Any:
    """Return the implementation for devices here, with the weights at `place`."""
    reducer = partial(GradientReducer, bucket_bytes=bucket_bytes)
    if len(devices) == 1:
        return ProcessReplicaExtended(
            strategy, collective, reducer(collective), devices[0], place
        )
    if place is not None:
        return CentralStorageExtended(place, strategy, collective, reducer, devices)
    return MirroredReplicasExtended(
        strategy, collective, reducer, devices, cross_device_ops
    )


class MultiWorkerMirroredStrategy(
    StepRunner,
    tf.distribute.MultiWorkerMirroredStrategy,
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
