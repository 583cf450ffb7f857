"""Rules for a valid cluster, shared by `Cluster` and TF_CONFIG."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.address import (
    LookUp,
    address_problem,
    is_loopback,
    split_address,
)

JOB_TYPES = ("chief", "worker", "ps", "evaluator")
Jobs = Mapping[str, tuple[str, ...]]

ERROR = "error"
WARNING = "warning"

# The consequence if training started regardless, by its name in JSON.
EFFECTS = {
    "hang": "Processes would wait forever for one that never comes.",
    "trains alone": "Each process would train alone, without an error.",
    "wrong rank": "Processes would have wrong ranks, or two the same.",
    "not reachable": "The others could not connect to this process, and would wait.",
    "nobody trains": "No process would train.",
    "not readable": "No process could read it, and each would end at once.",
    "refused": "TensorFlow refuses it when the strategy is made.",
    "port taken": "The kernel may have given the port to a connection when the process "
    "starts, which then fails now and then.",
    "not used": "It would be ignored.",
    "left out": "It would have no part in the training, and the others may wait for it "
    "when they connect.",
}
# Linux's default range of ports for outgoing connections.
_EPHEMERAL = range(32_768, 61_000)


@dataclass(frozen=True)
class Finding:
    """Error or warning about the description of a cluster."""

    # The path of the value, "cluster.worker[1]"; "TF_CONFIG" for all of the text.
    place: str
    problem: str
    received: str  # The words after "Received: ".
    fix: str
    effect: str  # A key of `EFFECTS`.
    severity: str = ERROR

    @property
    def message(self) -> str:
        """The error in three parts."""
        return f"{self.problem} Received: {self.received}. {self.fix}"

    @property
    def why(self) -> str:
        """The consequence, as a sentence."""
        return EFFECTS[self.effect]


def refuse_first(findings: Iterable[Finding], prefix: str = "") -> None:
    """Raise ValueError for the first finding, if any."""
    for finding in findings:
        raise ValueError(f"{prefix}{finding.message}")


def wrong_addresses(jobs: Jobs) -> Iterator[Finding]:
    """Yield the errors in the addresses of a cluster."""
    place_of: dict[tuple[str, int], str] = {}
    for place, address in addresses_by_place(jobs):
        problem = address_problem(address)
        if problem is not None:
            what, fix = problem
            received = excerpt(repr(address))
            yield Finding(place, f"{place} {what}", received, fix, "not reachable")
            continue
        first = place_of.setdefault(split_address(address), place)
        if first != place:
            yield Finding(
                place,
                f"{place} has the same address as {first}.",
                f"{address!r} twice",
                "List each process once, with a port of its own on its host.",
                "hang",
            )
    local = {place: host for (host, _), place in place_of.items() if is_loopback(host)}
    if local and len(local) < len(place_of):
        place, host = next(iter(local.items()))
        yield Finding(
            place,
            f"{place} is on {host}, where processes on other hosts cannot reach it.",
            f"{len(local)} of {len(place_of)} addresses on localhost",
            "Give every host the name by which the others reach it.",
            "not reachable",
        )


def wrong_task(task_type: str, index: int, jobs: Jobs) -> Iterator[Finding]:
    """Yield the error of a task that the cluster cannot hold."""
    if not jobs and (task_type, index) == ("worker", 0):
        return
    if jobs and "chief" not in jobs and "worker" not in jobs:
        yield Finding(
            "cluster",
            "cluster has neither a chief nor a worker, so no process would train.",
            f"only {', '.join(jobs)}",
            "Add the addresses of the workers.",
            "nobody trains",
        )
    elif task_type == "evaluator" and jobs and "evaluator" not in jobs:
        return
    elif task_type not in jobs:
        yield Finding(
            "task.type",
            "task.type names a job that the cluster does not have.",
            f"type={task_type!r}, the jobs {', '.join(jobs) or '(none)'}",
            f"Add the addresses of the job {task_type!r}, or correct the type.",
            "refused",
        )
    elif index >= len(jobs[task_type]):
        yield Finding(
            "task.index",
            f"task.index must be from 0 to {len(jobs[task_type]) - 1}, as "
            f"cluster.{task_type} has no more addresses.",
            f"index={index}",
            "Count from 0, and list every process of the job.",
            "refused",
        )


def wrong_type(task_type: object) -> Iterator[Finding]:
    """Yield the error of an unknown task type."""
    if task_type not in JOB_TYPES:
        yield Finding(
            "task.type",
            f"task.type must be one of {', '.join(JOB_TYPES)}.",
            f"type={excerpt(repr(task_type))}",
            "Use 'chief' for what other tools call master.",
            "refused",
        )


def wrong_index(index: object) -> Iterator[Finding]:
    """Yield the error of an invalid index."""
    if isinstance(index, bool) or not isinstance(index, int):
        problem = "task.index must be an integer."
    elif index < 0:
        problem = "task.index must not be negative."
    else:
        return
    received = f"index={excerpt(repr(index))}"
    fix = "Write a number without quotes, counting from 0 within each job."
    yield Finding("task.index", problem, received, fix, "wrong rank")


def excerpt(text: str) -> str:
    """Shorten a long text for an error."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def parse_json(text: str) -> Any:
    """Parse JSON; raise ValueError also for repeated keys and for deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, and refuse equal keys, of which json would keep the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f'the key "{excerpt(key)}" is repeated in one object')
        found[key] = value
    return found


def cluster_warnings(jobs: Jobs) -> Iterator[Finding]:
    """Yield warnings about a valid cluster that is probably not intended."""
    training = [*jobs.get("chief", ()), *jobs.get("worker", ())]
    if len(training) == 1 and "ps" not in jobs:
        yield _warning(
            "cluster.chief" if "chief" in jobs else "cluster.worker",
            "cluster has a single process that trains.",
            repr(training[0]),
            "List the addresses of all, the same in each process, or unset TF_CONFIG.",
            "trains alone",
        )
    missing = [job for job in ("chief", "worker") if job not in jobs]
    if "ps" in jobs and missing:
        yield _warning(
            "cluster.ps",
            f"cluster has parameter servers, but no {missing[0]}.",
            f"only {', '.join(jobs)}",
            "Add a chief, which runs the script's fit, and workers, which compute the "
            "gradients; or leave out ps, if every worker has all variables.",
            "hang" if missing == ["chief"] else "refused",
        )
    if "evaluator" in jobs:
        yield _warning(
            "cluster.evaluator",
            "cluster lists an evaluator among the processes that train together.",
            excerpt(", ".join(jobs["evaluator"])),
            "Leave the job out of cluster, in all processes; the evaluator itself may "
            "keep its task.",
            "left out",
        )
    for place, address in addresses_by_place(jobs):
        if split_address(address)[1] in _EPHEMERAL:
            yield _warning(
                place,
                f"{place} has a port from the range of outgoing connections, "
                f"{_EPHEMERAL.start} to {_EPHEMERAL.stop - 1}.",
                f"{address!r}",
                f"Use ports below {_EPHEMERAL.start}, for example 2222.",
                "port taken",
            )
            return  # One warning is enough for all ports.


def lookup_warnings(jobs: Jobs, look_up: LookUp) -> Iterator[Finding]:
    """Yield warnings for host names that resolve nowhere or only to this machine."""
    places: dict[str, str] = {}
    for place, address in addresses_by_place(jobs):
        if address_problem(address) is None:
            places.setdefault(split_address(address)[0], place)
    for host, place in places.items():
        try:
            numbers = look_up(host)
            is_local = bool(numbers) and all(map(is_loopback, numbers))
            if is_loopback(host) or len(places) == 1 or not is_local:
                continue
            problem, found = (
                "resolves to this machine itself",
                ", ".join(sorted(numbers)),
            )
        except OSError as error:
            problem, found = (
                "does not resolve on this machine",
                str(error.strerror or error),
            )
        yield _warning(
            place,
            f"{place} has a host name that {problem}.",
            f"{host!r} ({found})",
            "Correct it, or /etc/hosts, or give the IP address by which the others "
            "reach it. If only the hosts know the name, as in Kubernetes, check there.",
            "not reachable",
        )


def addresses_by_place(jobs: Jobs) -> Iterator[tuple[str, str]]:
    """Yield each address with its path, such as "cluster.worker[0]"."""
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            yield f"cluster.{job}[{index}]", address


def _warning(place: str, problem: str, received: str, fix: str, effect: str) -> Finding:
    """Return a finding that does not prevent a start."""
    return Finding(place, problem, received, fix, effect, WARNING)
