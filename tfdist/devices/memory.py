"""Parts of devices, and how much of their memory a process takes."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.devices.listing import find, parts_of
from tfdist.devices.starting import before_start


def grow_memory() -> tuple[str, ...]:
    """Let the process take the memory of its GPUs as it needs it, not all at the start.

    So that others find some, too. What was taken once is kept until the process ends;
    `limit_memory` sets a bound. It holds for all visible GPUs, because TensorFlow does
    not let it differ between them.

    Returns:
        The names of the GPUs; none on a machine without.

    Raises:
        RuntimeError: If TensorFlow has already started its devices.
        ValueError: If a GPU has a memory limit.

    Example:
        >>> grow_memory()  # doctest: +SKIP
        ('GPU:0',)
    """
    gpus = tf.config.get_visible_devices("GPU")
    names = tuple(name for gpu in gpus for name in parts_of(gpu))
    limited = [
        name
        for gpu in gpus
        if tf.config.get_logical_device_configuration(gpu)
        for name in parts_of(gpu)
    ]
    if limited:
        raise ValueError(
            "Memory that has a limit cannot be set to grow. Received: a limit on "
            f"{', '.join(limited)}. Leave out one of them, or call grow_memory first."
        )
    with before_start("The memory of GPUs must be set to grow", f"{len(gpus)} GPUs"):
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    return names


def limit_memory(device: str, memory_mib: int) -> str:
    """Take no more than a part of a GPU's memory, and leave the rest to others.

    The process takes that much at the start. Several processes share a GPU in this way;
    they share its time, too.

    Args:
        device: A name of `physical`, such as "GPU:0".
        memory_mib: The most that the process takes, in MiB.

    Returns:
        The name of the logical device.

    Raises:
        RuntimeError: If TensorFlow has already started its devices.
        ValueError: If there is no such device, or it is no GPU, or the limit is not
            positive.

    Example:
        >>> limit_memory("GPU:0", 4096)  # doctest: +SKIP
        'GPU:0'
    """
    return split(device, memory_limit_mib=[memory_mib])[0]


def split(
    device: str,
    parts: int | None = None,
    *,
    memory_limit_mib: Sequence[int] | None = None,
) -> tuple[str, ...]:
    """Make several logical devices of one.

    On a processor, to try on one machine what is meant for several GPUs. On a GPU, to
    give each part a memory of its own. The parts share what computes: nothing gets
    faster.

    Args:
        device: A name of `physical`, such as "CPU:0" or "GPU:0".
        parts: How many; for a processor, whose memory has no limits. Default None.
        memory_limit_mib: The memory of each part in MiB, one number a part; for a GPU,
            which TensorFlow does not split without. Default None.

    Returns:
        The names of the parts, for `tf.device` and strategies.

    Raises:
        RuntimeError: If TensorFlow has already started its devices.
        ValueError: If there is no such device, or it cannot be split like this.

    Example:
        >>> split("CPU:0", 2)  # doctest: +SKIP
        ('CPU:0', 'CPU:1')
    """
    found = find(device)
    if found.device_type == "GPU":
        limits = _check_limits(device, parts, memory_limit_mib)
    else:
        limits = [None] * _check_parts(device, parts, memory_limit_mib)
    configurations = [
        tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits
    ]
    with before_start("A device must be split or limited", f"device={device!r}"):
        tf.config.set_logical_device_configuration(found, configurations)
    return parts_of(found)


def _check_limits(
    device: str, parts: int | None, limits: Sequence[int] | None
) -> list[int | None]:
    """Return the memory of each part of a GPU."""
    if not limits or any(limit <= 0 for limit in limits):
        raise ValueError(
            "memory_limit_mib must hold a positive number of MiB for each part of a "
            f"GPU. Received: device={device!r}, memory_limit_mib={limits!r}. Use "
            f"split({device!r}, memory_limit_mib=[2048, 2048])."
        )
    if parts not in (None, len(limits)):
        raise ValueError(
            "parts must be as many as the numbers in memory_limit_mib. Received: "
            f"parts={parts!r}, memory_limit_mib={limits!r}. Leave out parts."
        )
    return list(limits)


def _check_parts(device: str, parts: int | None, limits: Sequence[int] | None) -> int:
    """Return the number of parts of a processor."""
    if limits is not None:
        raise ValueError(
            "Memory limits are for GPUs. Received: "
            f"device={device!r}, memory_limit_mib={limits!r}. Use "
            f"split({device!r}, {len(limits)}), or a limit of the operating system."
        )
    if parts is None or parts < 1:
        raise ValueError(
            "parts must be a number of logical devices. Received: "
            f"device={device!r}, parts={parts!r}. Use split({device!r}, 2)."
        )
    return parts
