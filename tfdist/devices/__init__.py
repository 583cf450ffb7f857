"""Configuration of this process's devices."""

from tfdist.devices.configuration import (
    grow_memory,
    limit_memory,
    log_placement,
    logical,
    physical,
    pin,
    split,
)

__all__ = [
    "grow_memory",
    "limit_memory",
    "log_placement",
    "logical",
    "physical",
    "pin",
    "split",
]
