"""The devices of this process, and their configuration before TensorFlow starts."""

import ctypes
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster import facts
from tfdist.compat.tensorflow import has_started

__all__ = [
    "grow_memory",
    "limit_memory",
    "log_placement",
    "logical",
    "physical",
    "pin",
    "split",
]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def pin(local_rank: int | None = None, local_size: int | None = None) -> str | None:
    """Hide from TensorFlow the GPUs of the other processes on this host.

    Otherwise every process would allocate memory on all GPUs and compute on the first.
    If the scheduler already shows the process a single GPU, it keeps that one. GPU
    memory then grows as needed, unless it has a limit.

    Strategies of several processes call this themselves, and so does a single process
    of `tfdist run` under `AllReduceStrategy`.

    Args:
        local_rank: The number of this process on its host. Default None:
            `tfdist.local_rank()`.
        local_size: The number of processes on the host. Default None:
            `tfdist.local_size()`.

    Returns:
        "GPU:0", TensorFlow's name of the remaining GPU; None without GPUs.

    Raises:
        RuntimeError: If TensorFlow has already initialized its GPUs.
        ValueError: If there are several GPUs, but fewer than processes.

    Example:
        >>> pin()  # doctest: +SKIP
        'GPU:0'
    """
    rank = facts.local_rank() if local_rank is None else local_rank
    size = facts.local_size() if local_size is None else local_size
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    with _before_start("Each process must choose its GPU", f"local_rank={rank}"):
        if len(gpus) > 1:
            gpus = [gpus[_check_place(rank, size, len(gpus))]]
            tf.config.set_visible_devices(gpus, "GPU")
        if not tf.config.get_logical_device_configuration(gpus[0]):
            tf.config.experimental.set_memory_growth(gpus[0], True)
    return parts_of(gpus[0])[0]


def hide_gpus() -> None:
    """Hide all GPUs from TensorFlow, in a process that leaves them to others."""
    tf.config.set_visible_devices([], "GPU")


def wait_for_gpus() -> bool:
    """Wait for the operations that were launched; return whether there is a GPU."""
    if not logical("GPU"):
        return False
    tf.test.experimental.sync_devices()
    return True


def grow_memory() -> tuple[str, ...]:
    """Allocate GPU memory as needed, instead of all of it at the start.

    Other processes can then use the rest. Memory is released only when the process
    ends; `limit_memory` sets a bound. The setting applies to all visible GPUs, because
    TensorFlow does not allow different ones.

    Returns:
        The names of the GPUs; empty without GPUs.

    Raises:
        RuntimeError: If TensorFlow has already initialized its devices.
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
    with _before_start("The memory of GPUs must be set to grow", f"{len(gpus)} GPUs"):
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    return names


def limit_memory(device: str, memory_mib: int) -> str:
    """Limit the process to a part of a GPU's memory.

    The process allocates that part at the start. Several processes can share a GPU in
    this way; they also share its time.

    Args:
        device: A name from `physical`, such as "GPU:0".
        memory_mib: The limit in MiB.

    Returns:
        The name of the logical device.

    Raises:
        RuntimeError: If TensorFlow has already initialized its devices.
        ValueError: If there is no such GPU, or the limit is not positive.

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
    """Split a device into several logical devices.

    On a CPU, this simulates several GPUs on one machine. On a GPU, each part has its
    own memory. The parts share the hardware, so nothing runs faster.

    Args:
        device: A name from `physical`, such as "CPU:0" or "GPU:0".
        parts: Number of parts of a CPU, which has no memory limits. Default None.
        memory_limit_mib: Memory of each part of a GPU in MiB; required for a GPU.
            Default None.

    Returns:
        The names of the parts, for `tf.device` and strategies.

    Raises:
        RuntimeError: If TensorFlow has already initialized its devices.
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
    with _before_start("A device must be split or limited", f"device={device!r}"):
        tf.config.set_logical_device_configuration(found, configurations)
    return parts_of(found)


def log_placement() -> None:
    """Log the device of each operation, until the process ends.

    The operations of a `tf.function` are printed on standard output while TensorFlow
    builds it. Eager operations are logged on standard error, provided that
    TF_CPP_MIN_LOG_LEVEL is 0 or unset; `tensor.device` gives the same information.

    Raises:
        RuntimeError: If TensorFlow has already initialized its devices, because it
            would then print nothing.

    Example:
        >>> log_placement()  # doctest: +SKIP
    """
    with _before_start("Placement must be logged", "log_placement()"):
        if has_started():
            raise RuntimeError("an operation has run")
        tf.debugging.set_log_device_placement(True)


@contextmanager
def _before_start(what: str, received: str) -> Iterator[None]:
    """Translate TensorFlow's error that its devices are already initialized."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{what} before TensorFlow starts its devices. Received: {received} in a "
            f"TensorFlow that has already started them ({error}). Do it first thing in "
            "the program, before any strategy, tensor, dataset, layer or model."
        ) from error


def _check_place(rank: int, size: int, gpus: int) -> int:
    """Return the number of the GPU of a process."""
    if size > gpus:
        raise ValueError(
            "Each process on a host needs a GPU of its own. Received: "
            f"{size} processes and {gpus} GPUs. Start at most {gpus} processes on this "
            'host, or hide the GPUs with CUDA_VISIBLE_DEVICES="" to train on its cores.'
        )
    if not 0 <= rank < size:
        raise ValueError(
            "local_rank must be the number of a process on this host. Received: "
            f"local_rank={rank}, local_size={size}. Count from 0."
        )
    return rank


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


def cards() -> list[str]:
    """Return the card of each logical GPU of this process; equal if it is the same.

    The names also tell hosts apart, but not containers of one host. Starts nothing.
    """
    found = []
    for gpu in tf.config.get_visible_devices("GPU"):
        number = int(gpu.name.rpartition(":")[2])
        parts = len(tf.config.get_logical_device_configuration(gpu) or [None])
        # Where the driver tells no address, each process counts as having its own.
        address = pci_address(number) or f"{number} of process {os.getpid()}"
        found += [f"{address} of {_host()}"] * parts
    return found


def pci_address(number: int, cuda: Any = None) -> str:
    """Return the address of a GPU of NVIDIA, such as "0000:3b:00.0"; "" if unknown.

    Another process may see the same GPU by another number.
    """
    try:
        # The library of the driver, which TensorFlow has loaded to count GPUs.
        cuda = cuda or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, address = ctypes.c_int(), ctypes.create_string_buffer(16)
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), number)
        or cuda.cuDeviceGetPCIBusId(address, len(address), device)
    )
    return "" if failed else address.value.decode()


def _host() -> str:
    """Return an identifier of the host that its containers share."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
