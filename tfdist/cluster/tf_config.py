"""TF_CONFIG: the text in which TensorFlow and its schedulers describe a cluster."""

import json
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tfdist.cluster.address import LookUp
from tfdist.cluster.model import Cluster, Task, cluster_from_jobs
from tfdist.cluster.validation import (
    JOB_TYPES,
    Finding,
    cluster_warnings,
    excerpt,
    lookup_warnings,
    refuse_first,
    wrong_addresses,
    wrong_index,
    wrong_task,
    wrong_type,
)

_FORMATS = {
    "json": "{}",
    "env": "TF_CONFIG={}",
    "shell": "export TF_CONFIG={}",
    "dotenv": "TF_CONFIG={}",
}
FORMATS = tuple(_FORMATS)

# Kubeflow writes it for a cluster whose number of workers may change; next to a full
# cluster it is ignored. So are "environment", "job", "trial" and "cloud" of Vertex AI.
_SPARSE = "sparseCluster"
_KEYS = ("cluster", "task", "rpc_layer", "environment", "job", _SPARSE)
_JOB_KEYS = (*JOB_TYPES, "master", _SPARSE)
_TASK_KEYS = ("type", "index", "trial", "cloud")
_WORKERS = '{"worker": ["node1:2222", "node2:2222"]}'
_EXAMPLES = {"cluster": _WORKERS, "task": '{"type": "worker", "index": 0}'}

# The length of an excerpt in an error, and how much of it precedes the mistake.
_EXCERPT_CHARACTERS = 72
_CHARACTERS_BEFORE = 40
_MOST_UNKNOWN_KEYS = 10


def loads(text: str) -> Cluster:
    """Parse a TF_CONFIG; raise ValueError for the first mistake."""
    reading = _read(text)
    refuse_first(reading.mistakes, "TF_CONFIG ")
    return cluster_from_jobs(reading.jobs, Task(reading.task_type, reading.index))


def dumps(cluster: Cluster) -> str:
    """Format a cluster as TF_CONFIG on one line; `{}` for `Cluster()`."""
    if not cluster.jobs:
        return "{}"
    task = {"type": cluster.task.type, "index": cluster.task.index}
    return json.dumps({"cluster": cluster.jobs, "task": task})


def findings(text: str, *, look_up: LookUp | None = None) -> tuple[Finding, ...]:
    """Return all errors in a TF_CONFIG, or its warnings if it has no error."""
    reading = _read(text)
    found = reading.mistakes or tuple(cluster_warnings(reading.jobs))
    if look_up is not None:
        found += tuple(lookup_warnings(reading.jobs, look_up))
    return found


def format_tf_config(text: str, to: str) -> str:
    """Return a line that sets TF_CONFIG, in one of `FORMATS`."""
    if to not in _FORMATS:
        raise ValueError(
            f"to must be one of {', '.join(FORMATS)}. Received: to={to!r}. "
            "Use shell for a line to source, dotenv for docker."
        )
    # `docker run --env-file` takes quotes as a part of the value.
    value = shlex.quote(text) if to in ("env", "shell") else text
    return _FORMATS[to].format(value)


@dataclass(frozen=True)
class _Reading:
    """Content of a TF_CONFIG, and its mistakes."""

    jobs: dict[str, tuple[str, ...]]
    task_type: Any
    index: Any
    mistakes: tuple[Finding, ...]


def _read(text: str) -> _Reading:
    """Parse a TF_CONFIG with all its mistakes; `{}` is worker 0 without addresses."""
    config, mistakes = _parse(text)
    # Any other text must hold a cluster and a task: with a misspelt key accepted, each
    # process would train alone.
    if not config:
        return _Reading({}, "worker", 0, tuple(mistakes))
    unknown = [*_unknown_keys(config, _KEYS, "has an unknown key", "TF_CONFIG")]
    mistakes += unknown
    if config.get("rpc_layer", "grpc") != "grpc":
        received = excerpt(json.dumps(config["rpc_layer"]))
        problem = 'rpc_layer must be "grpc".'
        fix = "Leave rpc_layer out."
        mistakes.append(Finding("rpc_layer", problem, received, fix, "refused"))
    # A section missing next to an unknown key is probably misspelt.
    sections = [key for key in _EXAMPLES if key in config or not unknown]
    jobs: dict[str, tuple[str, ...]] = {}
    task: dict[str, Any] = {}
    for key in sections:
        wrong = _wrong_section(key, config)
        if wrong is not None:
            mistakes.append(wrong)
        elif key == "cluster":
            jobs, found = _read_jobs(config[key])
            mistakes += found
        else:
            task = config[key]
            mistakes += _wrong_task_keys(task)
    mistakes += wrong_addresses(jobs)
    task_type, index = _job_type(task.get("type")), task.get("index", 0)
    if not mistakes:
        mistakes += wrong_task(task_type, index, jobs)
    return _Reading(jobs, task_type, index, tuple(mistakes))


def _parse(text: str) -> tuple[dict[str, Any], list[Finding]]:
    """Return the JSON object in a text, and the mistakes of the text."""
    mistakes: list[Finding] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        for name in repeated[:_MOST_UNKNOWN_KEYS]:
            # json would silently keep only the last one.
            mistakes.append(
                Finding(
                    "TF_CONFIG",
                    f'has the key "{excerpt(name)}" more than once in one object.',
                    excerpt(", ".join(names)),
                    "Put all addresses of one job into one list.",
                    "hang",
                )
            )
        return dict(pairs)

    try:
        config = json.loads(text, object_pairs_hook=make_object)
        received = excerpt(json.dumps(config))
    except json.JSONDecodeError as error:
        return {}, [*mistakes, _not_json(error) if text.strip() else _empty(text)]
    # Raised for deep nesting, and for a number of thousands of digits.
    except (RecursionError, ValueError) as error:
        problem, received = "cannot be read as JSON.", str(error)
        fix = 'Write it as {"cluster": {...}, "task": {...}}, and no more.'
    else:
        if isinstance(config, dict):
            return config, mistakes
        problem = "must be a JSON object."
        fix = 'Write it as {"cluster": {...}, "task": {...}}, without quotes round it.'
    finding = Finding("TF_CONFIG", problem, received, fix, "not readable")
    return {}, [*mistakes, finding]


def _empty(text: str) -> Finding:
    """Return the finding for a blank text."""
    return Finding(
        "TF_CONFIG",
        "is empty.",
        excerpt(repr(text)),
        "Unset it to train alone, or let it describe the cluster.",
        "trains alone",
    )


def _not_json(error: json.JSONDecodeError) -> Finding:
    """Return the finding that points at a JSON syntax error."""
    # A tab counts as one column, so it must be one character wide above the caret.
    line = error.doc.split("\n")[error.lineno - 1].replace("\t", " ")
    column = error.colno - 1
    start = max(0, column - _CHARACTERS_BEFORE)
    shown = line[start : start + _EXCERPT_CHARACTERS]
    place = f"line {error.lineno}, column {error.colno}"
    return Finding(
        place,
        f"is not valid JSON at {place}: {error.msg}.",
        f"\n  {shown}\n  {' ' * (column - start)}^",
        "Write it with json.dumps(): names in double quotes, no comma after the last.",
        "not readable",
    )


def _wrong_section(key: str, config: dict[str, Any]) -> Finding | None:
    """Return the finding for a missing or malformed "cluster" or "task"."""
    example = f'"{key}": {_EXAMPLES[key]}'
    if key == "cluster" and key not in config and _SPARSE in config:
        return _only_sparse()
    if key not in config:
        return Finding(
            key,
            f'has no "{key}".',
            excerpt(f"only {', '.join(config)}"),
            f"Add {example}, or unset TF_CONFIG to train alone.",
            "trains alone" if key == "cluster" else "wrong rank",
        )
    if not isinstance(config[key], dict):
        return Finding(
            key,
            f"{key} must be a JSON object.",
            excerpt(json.dumps(config[key])),
            f"Write it as {example}.",
            "not readable",
        )
    return None


def _wrong_task_keys(task: dict[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in the object "task"."""
    unknown = [*_unknown_keys(task, _TASK_KEYS, "task has an unknown key", "task")]
    yield from unknown
    for key in ("type", "index"):
        if key not in task and not unknown:
            problem = f'task has no "{key}".'
            fix = f"Write it as {_EXAMPLES['task']}."
            received = excerpt(json.dumps(task))
            yield Finding("task", problem, received, fix, "wrong rank")
    if "type" in task:
        yield from wrong_type(_job_type(task["type"]))
    if "index" in task:
        yield from wrong_index(task["index"])


def _read_jobs(
    cluster: dict[str, Any],
) -> tuple[dict[str, tuple[str, ...]], list[Finding]]:
    """Return the addresses by job type, and the mistakes in the object "cluster"."""
    complaint = "cluster has an unknown job"
    mistakes = [*_unknown_keys(cluster, _JOB_KEYS, complaint, "cluster")]
    if "chief" in cluster and "master" in cluster:
        problem = "cluster has both a chief and a master, two words for one job."
        received = excerpt(", ".join(cluster))
        fix = "Leave one of them out."
        mistakes.append(Finding("cluster", problem, received, fix, "refused"))
    jobs: dict[str, tuple[str, ...]] = {}
    for job, addresses in cluster.items():
        if job in _JOB_KEYS and job != _SPARSE:
            wrong = _wrong_list(job, addresses)
            if wrong is not None:
                mistakes.append(wrong)
            elif addresses:
                jobs.setdefault(_job_type(job), tuple(addresses))
    if not jobs and not mistakes:
        mistakes.append(
            _only_sparse() if _SPARSE in cluster else _no_addresses(cluster)
        )
    return jobs, mistakes


def _wrong_list(job: str, addresses: Any) -> Finding | None:
    """Return the finding for a job without a valid list of addresses."""
    place = f"cluster.{job}"
    received = excerpt(json.dumps(addresses))
    if isinstance(addresses, str):
        problem = f"{place} must be a list, also for a single address."
        fix = f"Write it as {excerpt(json.dumps(addresses.split(',')))}."
    elif not isinstance(addresses, list) or not all(
        isinstance(each, str) for each in addresses
    ):
        problem = f'{place} must be a list of "host:port" strings.'
        fix = 'Write it as ["node1:2222", "node2:2222"].'
    elif job == "worker" and not addresses:
        problem = f"{place} is an empty list."
        fix = "Add the workers, or leave the job out if the chief alone trains."
        return Finding(place, problem, received, fix, "nobody trains")
    elif _job_type(job) == "chief" and len(addresses) > 1:
        problem = f"{place} has more than one address, but a cluster has one chief."
        fix = "Make the others workers."
    else:
        return None
    return Finding(place, problem, received, fix, "refused")


def _no_addresses(cluster: dict[str, Any]) -> Finding:
    """Return the finding for a cluster without addresses."""
    return Finding(
        "cluster",
        "cluster has no addresses at all.",
        excerpt(json.dumps(cluster)),
        f"Write it as {_WORKERS}, or unset TF_CONFIG to train alone.",
        "trains alone",
    )


def _only_sparse() -> Finding:
    """Return the finding for a sparse cluster, which omits the other workers."""
    return Finding(
        "cluster",
        "cluster is sparse: it leaves out the other workers.",
        '"sparseCluster" and no other addresses',
        "Set enableDynamicWorker to false in the TFJob, so that each process gets all.",
        "trains alone",
    )


def _unknown_keys(
    found: dict[str, Any], known: tuple[str, ...], complaint: str, place: str
) -> Iterator[Finding]:
    """Yield the unknown keys of an object, each with the nearest known key."""
    unknown = (key for key in found if key not in known)
    for key in islice(unknown, _MOST_UNKNOWN_KEYS):
        # Imported late: only a mistake needs it.
        import difflib

        near = difflib.get_close_matches(key[:50].lower(), known, n=1)
        advice = "Leave it out, or put it into the object where it belongs."
        if near:
            advice = f'Did you mean "{near[0]}"?'
        effect = "refused"
        if place == "task":
            effect = "wrong rank"
        elif place == "TF_CONFIG":
            effect = "not used" if "task" in found else "wrong rank"
            effect = effect if "cluster" in found else "trains alone"
        yield Finding(
            place,
            f'{complaint} "{excerpt(key)}".',
            excerpt(", ".join(found)),
            f"{advice} Known are: {', '.join(known)}.",
            effect,
        )


def _job_type(job: Any) -> Any:
    """Return a job type; "master" is an older name of "chief"."""
    return "chief" if job == "master" else job
