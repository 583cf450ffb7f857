"""The hosts of a job, and how many of its processes each takes."""

import sys
from dataclasses import dataclass, replace

from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.hosts.slots import HostSlots
from tfdist.launch.job import Job
from tfdist.launch.remote_command import DEFAULT_SSH
from tfdist.launch.restarts import Restarts

DEFAULT_START_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Hosts:
    """Where a job is to run.

    Args:
        slots: The hosts, and how many processes each takes, in the order of the ranks.
        ssh: The command that reaches them. Default "ssh".
        python: The interpreter on them. Default: that of the launcher.
        start_timeout_seconds: How long they may take to answer. Default 60.
    """

    slots: tuple[HostSlots, ...]
    ssh: str = DEFAULT_SSH
    python: str = sys.executable
    start_timeout_seconds: float = DEFAULT_START_TIMEOUT_SECONDS

    def check(self, job: Job, restarts: Restarts) -> None:
        """Refuse a job that cannot be on these hosts.

        Args:
            job: What is to be run.
            restarts: How often it may be started again.

        Raises:
            ValueError: If the hosts have too few slots, or the job can only be on one
                machine.
        """
        fill(self, job.process_count)
        if job.collective == "horovod":
            raise ValueError(
                "--collective horovod starts its processes on this machine only. "
                "Received: hosts besides. Start them with horovodrun or mpirun."
            )
        if restarts.min_size is not None:
            raise ValueError(
                "--min-np is for the places of one machine. Received: hosts besides. "
                "Leave it out: then all are started again on the same hosts."
            )


def fill(hosts: Hosts, count: int) -> tuple[HostSlots, ...]:
    """Give processes their places, host by host.

    Args:
        hosts: The hosts.
        count: How many processes there are.

    Returns:
        The hosts that are needed, with as many slots as are taken.

    Raises:
        ValueError: If there are too few slots, or a name that means another host on
            each of them.

    Example:
        >>> fill(Hosts((HostSlots("a", 2), HostSlots("b", 2))), 3)
        (HostSlots(host='a', slots=2), HostSlots(host='b', slots=1))
    """
    taken, left = [], count
    for host in hosts.slots:
        if left:
            taken.append(replace(host, slots=min(host.slots, left)))
            left -= taken[-1].slots
    if left:
        slots = sum(host.slots for host in hosts.slots)
        raise ValueError(
            "The hosts have too few slots for the processes of the job. "
            f"Received: {count} processes, {slots} slots. "
            "Start fewer processes, or give a host more slots, as in node1:4."
        )
    local = [host.host for host in taken if is_loopback(_bare(host.host))]
    if local and len(taken) > 1:
        raise ValueError(
            "A host among several needs a name by which the others reach it. "
            f"Received: {local[0]}. Give the name of this machine in its network."
        )
    return tuple(taken)


def _bare(host: str) -> str:
    """Return the name of a host without the brackets of IPv6."""
    return split_address(f"{host}:1")[0]
