"""Configuration of this process's devices."""

from tfdist.devices.configuration import (
    grow_memory,
    limit_memory,
    log_placement,
    pin,
    split,
)
from tfdist.devices.listing import logical, physical

__all__ = [
    "grow_memory",
    "limit_memory",
    "log_placement",
    "logical",
    "physical",
    "pin",
    "split",
]
