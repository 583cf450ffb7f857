"""The rules of a TF_CONFIG: everything that is wrong with one.

They go on with what was probably meant, so that one mistake neither hides the next nor
is reported as three. `loads` refuses the first, `tfdist config check` prints all.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.finding import Finding
from tfdist.cluster.tf_config_jobs import (
    EXAMPLE,
    ONLY_SPARSE,
    SPARSE,
    JobsRead,
    job_type,
    read_jobs,
)
from tfdist.cluster.tf_config_text import as_meant, parse, unknown_keys
from tfdist.cluster.validation import (
    wrong_addresses,
    wrong_index,
    wrong_task,
    wrong_type,
)

_KEYS = ("cluster", "task", "rpc_layer", "environment", "job", SPARSE)
_TASK_KEYS = ("type", "index", "trial", "cloud")
_EXAMPLES = {"cluster": EXAMPLE, "task": '{"type": "worker", "index": 0}'}


@dataclass(frozen=True)
class Reading:
    """What a TF_CONFIG says, as it was probably meant.

    Args:
        jobs: The addresses by job type, without empty jobs.
        task_type: The job of this process.
        index: Its number within that job.
        mistakes: What is wrong. Without any, the rest makes a `Cluster`.
    """

    jobs: dict[str, tuple[str, ...]]
    task_type: Any
    index: Any
    mistakes: tuple[Finding, ...]


def read(text: str) -> Reading:
    """Read a TF_CONFIG, whatever is wrong with it.

    Args:
        text: The value of the variable.

    Returns:
        What it says; `{}` is worker 0 of a cluster without addresses.

    Example:
        >>> [mistake.place for mistake in read('{"cluster": {}, "task": []}').mistakes]
        ['cluster', 'task']
    """
    config, mistakes = parse(text)
    if not config:
        return Reading({}, "worker", 0, mistakes)
    meant = as_meant(config, _KEYS)
    found = _cluster(meant, config)
    task, wrong_keys_of_task = _task(meant, config)
    task_type, index = job_type(task.get("type")), task.get("index", 0)
    wrong_values = _wrong_values(task)
    is_sure = found.is_sure and task.keys() >= {"type", "index"} and not wrong_values
    return Reading(
        found.jobs,
        task_type,
        index,
        (
            *mistakes,
            *_wrong_keys(config),
            *_wrong_rpc_layer(meant),
            *found.findings,
            *wrong_keys_of_task,
            *wrong_values,
            *wrong_addresses(found.jobs),
            *(wrong_task(task_type, index, found.jobs) if is_sure else ()),
        ),
    )


def _wrong_keys(config: dict[str, Any]) -> Iterator[Finding]:
    """Return the keys beside "cluster" and "task" that nobody would read."""
    effect = "not used"
    if "cluster" not in config:
        effect = "trains alone"
    elif "task" not in config:
        effect = "wrong rank"
    complaint = "has an unknown key"
    return unknown_keys(config, _KEYS, complaint, place="TF_CONFIG", effect=effect)


def _wrong_rpc_layer(config: dict[str, Any]) -> list[Finding]:
    """Return the mistake of a transport that the collectives do not speak."""
    rpc_layer = config.get("rpc_layer", "grpc")
    if rpc_layer == "grpc":
        return []
    problem = 'rpc_layer must be "grpc".'
    received = json.dumps(rpc_layer)
    return [Finding("rpc_layer", problem, received, "Leave rpc_layer out.", "refused")]


def _cluster(meant: dict[str, Any], config: dict[str, Any]) -> JobsRead:
    """Read the object "cluster", if there is one."""
    if SPARSE in meant and "cluster" not in meant:
        return JobsRead({}, (ONLY_SPARSE,), is_sure=False)
    finding = _wrong_section("cluster", meant, config)
    if finding is not None:
        return JobsRead({}, (finding,), is_sure=False)
    return read_jobs(meant["cluster"])


def _task(
    meant: dict[str, Any], config: dict[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the object "task" as it is meant, and what is wrong with its keys."""
    finding = _wrong_section("task", meant, config)
    if finding is not None:
        return {}, [finding]
    written = meant["task"]
    complaint = "task has an unknown key"
    findings = [
        *unknown_keys(written, _TASK_KEYS, complaint, place="task", effect="wrong rank")
    ]
    task = as_meant(written, _TASK_KEYS)
    for key in ("type", "index"):
        if key not in task:
            problem = f'task has no "{key}".'
            fix = f"Write it as {_EXAMPLES['task']}."
            received = json.dumps(written)
            findings.append(Finding("task", problem, received, fix, "wrong rank"))
    return task, findings


def _wrong_section(
    key: str, meant: dict[str, Any], config: dict[str, Any]
) -> Finding | None:
    """Say why there is no object "cluster" or "task"."""
    example = f'"{key}": {_EXAMPLES[key]}'
    if key not in meant:
        return Finding(
            key,
            f'has no "{key}".',
            f"only {', '.join(config)}",
            f"Add {example}, or unset TF_CONFIG to train alone.",
            "trains alone" if key == "cluster" else "wrong rank",
        )
    if not isinstance(meant[key], dict):
        return Finding(
            key,
            f"{key} must be a JSON object.",
            json.dumps(meant[key]),
            f"Write it as {example}.",
            "not readable",
        )
    return None


def _wrong_values(task: dict[str, Any]) -> list[Finding]:
    """Return what is wrong with the type and the index that are there."""
    findings = [
        wrong_type(job_type(task["type"])) if "type" in task else None,
        wrong_index(task["index"]) if "index" in task else None,
    ]
    return [finding for finding in findings if finding is not None]
