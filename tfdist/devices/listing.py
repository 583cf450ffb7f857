"""The devices of this process, by names such as "GPU:0"."""

import re
from collections import Counter
from typing import Any

import tensorflow as tf

# "GPU:0", "/gpu:0", "/device:GPU:0", "/physical_device:GPU:0" and longer ones.
_NAME = re.compile(r"(?:.*/)?(?:physical_device:|device:)?([A-Za-z_]+):(\d+)")


def physical(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of this process's physical devices, without starting TensorFlow.

    `CUDA_VISIBLE_DEVICES` removes GPUs from this list; `pin` and
    `tf.config.set_visible_devices` do not.

    Args:
        kind: "CPU", "GPU" or another TensorFlow device type. Default None: all.

    Returns:
        Names such as "CPU:0" and "GPU:1", for `split` and `limit_memory`.

    Example:
        >>> physical("CPU")
        ('CPU:0',)
    """
    devices = tf.config.list_physical_devices(kind and kind.upper())
    return tuple(_short(device.name) for device in devices)


def logical(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of the devices for `tf.device` and strategies.

    These are the visible devices, with the parts of split ones. Unlike
    `tf.config.list_logical_devices`, this does not start TensorFlow, so devices can
    still be split or hidden, and strategies created, afterwards.

    Args:
        kind: "CPU", "GPU" or another TensorFlow device type. Default None: all.

    Returns:
        Names such as "CPU:0" and "GPU:1", of this process alone.

    Example:
        >>> len(logical("CPU")) >= 1
        True
    """
    visible = tf.config.get_visible_devices(kind and kind.upper())
    return tuple(name for device in visible for name in parts_of(device))


def parts_of(device: Any) -> tuple[str, ...]:
    """Return the logical device names of a visible physical device."""
    # TensorFlow numbers the parts of all visible devices of a type consecutively.
    first = 0
    for other in tf.config.get_visible_devices(device.device_type):
        count = len(tf.config.get_logical_device_configuration(other) or [None])
        if other == device:
            return tuple(f"{device.device_type}:{first + i}" for i in range(count))
        first += count
    return ()


def find(device: str) -> Any:
    """Return TensorFlow's `PhysicalDevice` of that name, if it is visible."""
    match = _NAME.fullmatch(str(device))
    name = f"{match[1].upper()}:{int(match[2])}" if match else ""
    found = {_short(each.name): each for each in tf.config.get_visible_devices()}
    if name not in found:
        raise ValueError(
            "device must name a physical device that is visible. Received: "
            f"device={device!r}. Use one of: {', '.join(found)}. {_missing(found)}"
        )
    return found[name]


def _short(name: str) -> str:
    """Return "GPU:0" for "/physical_device:GPU:0"."""
    return name.removeprefix("/physical_device:")


def _missing(found: dict[str, Any]) -> str:
    """Explain why further devices may be missing."""
    kinds = Counter(name.partition(":")[0] for name in found)
    if kinds["GPU"]:
        return "CUDA_VISIBLE_DEVICES and tfdist.devices.pin hide others."
    return (
        "A GPU is missing if CUDA_VISIBLE_DEVICES hides it, or if TensorFlow does not "
        "find its driver: `tfdist env --devices`."
    )
