"""TensorFlow's own strategies, which do in Keras 3 what they promise."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective, SingleCollective
from tfdist.compat import mirrored as compat
from tfdist.compat.keras import install, options_done_wrong
from tfdist.gradients import BUCKET_BYTES, GradientReducer
from tfdist.strategies.base import StepRunner
from tfdist.strategies.mirrored import CentralStorageExtended, MirroredReplicasExtended
from tfdist.strategies.process_replica import ProcessReplicaExtended


class MirroredStrategy(StepRunner, tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """Trains a copy of the model on each device of this process, all of them equal.

    It takes the arguments of `tf.distribute.MirroredStrategy` and is one. In `fit` each
    device computes the gradients of its rows of the global batch; the sum over all
    devices updates each copy. It ends with the weights that one device ends with, to
    rounding, whatever the optimizer does with gradients. Metrics and logs, those of
    batches too, are the values over all rows.

    The default devices are the GPUs of this machine, or else its CPUs, of which there
    is one unless it is split: see `tfdist.devices.split`.

    Args:
        devices: The devices, such as ["GPU:0", "GPU:1"]. Default None: all GPUs, or
            else all logical CPUs.
        cross_device_ops: What sums gradients and other values over the devices, such as
            `tf.distribute.HierarchicalCopyAllReduce()`. In branches and loops, where
            none of these can work, as with accumulated gradients, it is TensorFlow's
            collectives. Default None: those everywhere.

    Raises:
        ValueError: If a device is not there, or is given twice.

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
        self, devices: Sequence[str] | None = None, cross_device_ops: Any = None
    ) -> None:
        names = full_names("devices", devices)
        extended = of_devices(self, SingleCollective(), names, cross_device_ops)
        tf.distribute.Strategy.__init__(self, extended)
        install(is_alone=True)


class CentralStorageStrategy(
    StepRunner,
    tf.distribute.experimental.CentralStorageStrategy,  # type: ignore[misc]
):
    """Keeps the weights on one device, which all devices of this process read.

    It takes the arguments of `tf.distribute.experimental.CentralStorageStrategy` and is
    one. Each device computes the gradients of its rows; their sum updates the weights,
    which are there once, as is what the optimizer keeps of each. It ends with the
    weights that one device ends with, to rounding. Devices with little memory can so
    share a large model's optimizer; each step copies the weights to every device.

    Args:
        compute_devices: The devices that compute. Default None: all GPUs, or else all
            logical CPUs.
        parameter_device: The device of the weights. Default None: the CPU, or the only
            device that computes.

    Raises:
        ValueError: If a device is not there, or is given twice.

    Example:
        >>> CentralStorageStrategy().num_replicas_in_sync
        1
    """

    _collective_key_base = compat.FIRST_GROUP_KEY

    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
    ) -> None:
        names = full_names("compute_devices", compute_devices)
        is_one = len(names) == 1
        if parameter_device is not None:
            (place,) = full_names("parameter_device", [parameter_device])
        else:
            place = names[0] if is_one else compat.full_name("CPU:0")
        collective = SingleCollective()
        if is_one:
            reducer = GradientReducer(collective)
            extended: Any = ProcessReplicaExtended(
                self, collective, reducer, names[0], place
            )
        else:
            extended = CentralStorageExtended(
                place, self, collective, GradientReducer, names
            )
        tf.distribute.Strategy.__init__(self, extended)
        install(is_alone=True)

    def check_compiled(self, model: Any) -> None:
        """Refuse what XLA cannot compile: it wants variables on its own device.

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


class OneDeviceStrategy(StepRunner, tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """Puts variables and computation on one device, at no cost.

    It takes the argument of `tf.distribute.OneDeviceStrategy` and is one.

    Args:
        device: The device, such as "GPU:0".

    Raises:
        ValueError: If the device is not there.

    Example:
        >>> OneDeviceStrategy("CPU:0").num_replicas_in_sync
        1
    """

    def __init__(self, device: str) -> None:
        (name,) = full_names("device", [device])
        collective = SingleCollective()
        reducer = GradientReducer(collective)
        tf.distribute.Strategy.__init__(
            self, ProcessReplicaExtended(self, collective, reducer, name)
        )
        install(is_alone=True)


def full_names(argument: str, devices: Sequence[str] | None) -> list[str]:
    """Return the full names of devices, checked; all of this process for None.

    Args:
        argument: What they were given as, for errors.
        devices: Their names, such as "GPU:0".

    Raises:
        ValueError: If there are none, if one is not there, or given twice.
    """
    if devices is None:
        return [compat.full_name(device) for device in compat.all_local_devices()]
    names = [compat.full_name(device) for device in devices]
    there = [
        compat.full_name(device.name) for device in tf.config.list_logical_devices()
    ]
    problem = "must name at least one device" if not names else ""
    if missing := [
        d for d, name in zip(devices, names, strict=True) if name not in there
    ]:
        problem = f"must be there: {missing[0]!r} is not"
    elif len(set(names)) < len(names):
        problem = "must be given once each"
    if problem:
        short = [name.rpartition("/device:")[2] for name in there]
        raise ValueError(
            f"The devices of {argument} {problem}. Received: {argument}="
            f"{list(devices)!r}. There are: {', '.join(short)}. Split one into several "
            "with tfdist.devices.split, before TensorFlow starts."
        )
    return names


class TPUStrategy(tf.distribute.TPUStrategy):  # type: ignore[misc]
    """TensorFlow's own, which refuses what it would do wrong under Keras 3.

    It takes the arguments of `tf.distribute.TPUStrategy` and is one. The steps of Keras
    are TensorFlow's and Keras's own here: what `tfdist` does on other devices needs
    collectives that a TPU does not have. What Keras 3 does wrong under them without a
    message is therefore an error when a model is compiled: clipping, which comes before
    the sum over replicas; loss scaling, which looks at one replica alone; gradient
    accumulation, and moving averages of weights.

    It was tried without a TPU only, as far as that goes.

    Args:
        tpu_cluster_resolver: See `tf.distribute.TPUStrategy`. Default None.
        experimental_device_assignment: See there. Default None.
        experimental_spmd_xla_partitioning: See there. Default False.

    Raises:
        RuntimeError: If TensorFlow sees no TPU.
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
        """Refuse what Keras 3 would do wrong under this strategy.

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
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """Return the extended part of a strategy; for one device, that which costs nothing.

    Args:
        strategy: The public strategy.
        collective: How the processes talk.
        devices: The full names of the devices of this process.
        cross_device_ops: See `MirroredReplicasExtended`. Default None.
        bucket_bytes: How many bytes of gradients travel together. Default 25 MiB.
    """

    def reducer(collective: Collective) -> GradientReducer:
        return GradientReducer(collective, bucket_bytes=bucket_bytes)

    if len(devices) == 1:
        (device,) = devices
        return ProcessReplicaExtended(strategy, collective, reducer(collective), device)
    return MirroredReplicasExtended(
        strategy, collective, reducer, devices, cross_device_ops
    )
