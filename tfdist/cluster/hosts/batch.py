"""Hosts that PBS, LSF and Grid Engine give to a job, in a file."""

import os
from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.hosts.slots import HostSlots, parse_hostfile

_SYSTEMS = {
    "PBS_NODEFILE": "PBS",
    "LSB_DJOB_HOSTFILE": "LSF",
    "PE_HOSTFILE": "Grid Engine",
}


def batch_hosts(
    env: Mapping[str, str] | None = None,
) -> tuple[str, tuple[HostSlots, ...]] | None:
    """Return the batch system and the hosts of its job, or None outside of one."""
    env = os.environ if env is None else env
    for variable, system in _SYSTEMS.items():
        file = Path(env.get(variable, ""))
        # A container may know the variable without the file.
        if file.is_file():
            first, *others = hosts = parse_hostfile(file.read_text(), place=variable)
            # Of machines with a batch node, LSF lists it once and first; the script
            # runs there.
            is_batch_node = first.slots == 1 and all(one.slots > 1 for one in others)
            if system == "LSF" and others and is_batch_node:
                hosts = (*others,)
            return system, hosts
    return None
