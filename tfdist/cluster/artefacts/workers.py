"""The workers of a cluster, for formats that hold nobody else."""

from itertools import groupby

from tfdist.cluster.address import split_address
from tfdist.cluster.host_slots import HostSlots
from tfdist.cluster.model import Cluster

# What holds which jobs, for the errors.
_HOLDS_ALL = "json, tfjob and compose hold every job."


def workers_only(cluster: Cluster, form: str) -> tuple[str, ...]:
    """Return the addresses of the workers of a cluster that has no other jobs.

    Args:
        cluster: The cluster.
        form: The format that is to hold it.

    Returns:
        The addresses, by rank.

    Raises:
        ValueError: If there are other jobs.
    """
    others = [job for job in cluster.jobs if job != "worker"]
    if others:
        raise ValueError(
            f"--to {form} holds workers only, which all run the same. "
            f"Received: also {', '.join(others)}. "
            f"Make the chief worker 0, and leave out the others; {_HOLDS_ALL}"
        )
    return cluster.workers


def hosts_of(cluster: Cluster, form: str) -> tuple[HostSlots, ...]:
    """Return the hosts of the workers, with the number of workers on each.

    Args:
        cluster: The cluster, which has workers only.
        form: The format that is to hold it.

    Returns:
        The hosts, in the order of the ranks.

    Raises:
        ValueError: If the ranks do not go host by host, which no list of hosts tells.

    Example:
        >>> hosts_of(Cluster(workers=("a:1", "a:2", "b:1")), "hostfile")
        (HostSlots(host='a', slots=2), HostSlots(host='b', slots=1))
    """
    workers = workers_only(cluster, form)
    groups = groupby(workers, key=lambda address: split_address(address)[0])
    runs = [(name, [*addresses]) for name, addresses in groups]
    if len({name for name, _ in runs}) < len(runs):
        raise ValueError(
            f"--to {form} gives ranks to one host after another. "
            f"Received: workers in the order {','.join(workers)}. "
            "Put those of each host beside each other."
        )
    return tuple(
        HostSlots(addresses[0].rpartition(":")[0], len(addresses))
        for _, addresses in runs
    )


def equal_slots(hosts: tuple[HostSlots, ...], form: str) -> int:
    """Return the number of workers that every host has.

    Args:
        hosts: The hosts.
        form: The format that is to hold them.

    Returns:
        The number.

    Raises:
        ValueError: If they have different ones.

    Example:
        >>> equal_slots((HostSlots("a", 2), HostSlots("b", 2)), "sbatch")
        2
    """
    if len({host.slots for host in hosts}) > 1:
        received = ", ".join(f"{host.host}:{host.slots}" for host in hosts)
        raise ValueError(
            f"--to {form} has one number of workers for all hosts. "
            f"Received: {received}. Give each host as many as the others."
        )
    return hosts[0].slots


def port_of(addresses: tuple[str, ...]) -> int:
    """Return the port of the first of several addresses.

    Each pod has a network address of its own, so that all can have this port.

    Args:
        addresses: At least one.

    Example:
        >>> port_of(("a:2222", "a:2223"))
        2222
    """
    return split_address(addresses[0])[1]
