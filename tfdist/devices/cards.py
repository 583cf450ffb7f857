"""The graphics cards of this process, by their addresses on the PCI bus."""

import ctypes
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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
