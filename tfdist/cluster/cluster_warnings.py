"""What is doubtful about a cluster that is possible, and may yet be meant so."""

from collections.abc import Iterator

from tfdist.cluster.address import split_address
from tfdist.cluster.finding import WARNING, Finding
from tfdist.cluster.validation import Jobs, addresses_by_place

# From which Linux gives ports to outgoing connections, unless it is told otherwise.
_EPHEMERAL = range(32_768, 61_000)


def cluster_warnings(jobs: Jobs) -> Iterator[Finding]:
    """Yield what is doubtful about the addresses of a cluster.

    Args:
        jobs: The addresses by job type, without empty jobs, all of them possible.

    Example:
        >>> [finding.effect for finding in cluster_warnings({"worker": ("a:2222",)})]
        ['trains alone']
    """
    yield from _alone(jobs)
    yield from _parameter_servers(jobs)
    yield from _evaluators(jobs)
    yield from _ephemeral_ports(jobs)


def _alone(jobs: Jobs) -> Iterator[Finding]:
    """Yield that one process trains by itself."""
    training = [*jobs.get("chief", ()), *jobs.get("worker", ())]
    if len(training) == 1 and "ps" not in jobs:
        place = "cluster.chief" if "chief" in jobs else "cluster.worker"
        yield _warning(
            place,
            "cluster has a single process that trains.",
            repr(training[0]),
            "List the addresses of all, the same in each process, or unset TF_CONFIG.",
            "trains alone",
        )


def _parameter_servers(jobs: Jobs) -> Iterator[Finding]:
    """Yield servers that nobody would use."""
    if "ps" not in jobs:
        return
    received = f"only {', '.join(jobs)}"
    if "chief" not in jobs:
        yield _warning(
            "cluster.ps",
            "cluster has parameter servers, but no chief to tell the workers what to "
            "do.",
            received,
            "Add the address of the chief, which runs the script's fit; or leave out "
            "the job ps, if every worker has all variables.",
            "hang",
        )
    elif "worker" not in jobs:
        yield _warning(
            "cluster.ps",
            "cluster has parameter servers, but no worker.",
            received,
            "Add the addresses of the workers: the chief computes no gradients.",
            "refused",
        )


def _evaluators(jobs: Jobs) -> Iterator[Finding]:
    """Yield evaluators among those who train."""
    evaluators = jobs.get("evaluator", ())
    if len(evaluators) > 1:
        yield _warning(
            "cluster.evaluator",
            "cluster has several evaluators.",
            f"{len(evaluators)} addresses",
            "Keep one at most.",
            "refused",
        )
    if evaluators:
        yield _warning(
            "cluster.evaluator",
            "cluster lists an evaluator among the processes that train together.",
            ", ".join(evaluators),
            "Leave the job out of cluster, in all processes; the evaluator itself may "
            "keep its task.",
            "left out",
        )


def _ephemeral_ports(jobs: Jobs) -> Iterator[Finding]:
    """Yield ports that any connection may have taken: one finding for all of them."""
    found = [
        (place, address)
        for place, address in addresses_by_place(jobs)
        if split_address(address)[1] in _EPHEMERAL
    ]
    if found:
        place, address = found[0]
        others = f" and {len(found) - 1} more" if found[1:] else ""
        yield _warning(
            place,
            f"{place} has a port from the range of outgoing connections, "
            f"{_EPHEMERAL.start} to {_EPHEMERAL.stop - 1}.",
            f"{address!r}{others}",
            f"Use ports below {_EPHEMERAL.start}, for example 2222.",
            "port taken",
        )


def _warning(place: str, problem: str, received: str, fix: str, effect: str) -> Finding:
    """Return a finding with which processes may start."""
    return Finding(place, problem, received, fix, effect, WARNING)
