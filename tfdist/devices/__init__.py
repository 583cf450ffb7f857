"""Which devices a process has, and what it may take of them."""

from tfdist.devices.listing import logical, physical
from tfdist.devices.memory import grow_memory, limit_memory, split
from tfdist.devices.pinning import pin
from tfdist.devices.placement import log_placement

__all__ = [
    "grow_memory",
    "limit_memory",
    "log_placement",
    "logical",
    "physical",
    "pin",
    "split",
]
