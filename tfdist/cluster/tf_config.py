"""TF_CONFIG: the text in which TensorFlow and its schedulers describe a cluster."""

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from tfdist.cluster.address import LookUp
from tfdist.cluster.model import Cluster, Task, cluster_from_jobs
from tfdist.cluster.validation import (
    JOB_TYPES,
    Finding,
    cluster_warnings,
    excerpt,
    lookup_warnings,
    parse_json,
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

# The job type of each key; "master" is an older name of "chief".
_JOB_NAMES = {job: job for job in JOB_TYPES} | {"master": "chief"}
# Kubeflow writes it for a cluster whose number of workers may change; next to a full
# cluster it is ignored. So are "environment", "job", "trial" and "cloud" of Vertex AI.
_SPARSE = "sparseCluster"
_KEYS = ("cluster", "task", "rpc_layer", "environment", "job", _SPARSE)
_TASK_KEYS = ("type", "index", "trial", "cloud")
_ADDRESSES = '["node1:2222", "node2:2222"]'
_EXAMPLES = {
    "cluster": f'{{"worker": {_ADDRESSES}}}',
    "task": '{"type": "worker", "index": 0}',
}


def loads(
    text: str, *, name: str = "TF_CONFIG", job_names: Mapping[str, str] | None = None
) -> Cluster:
    """Parse a TF_CONFIG, or a variable like it; raise ValueError for a mistake."""
    reading = _Reading(text, job_names)
    refuse_first(reading.mistakes, f"{name} ")
    return cluster_from_jobs(reading.jobs, Task(reading.task_type, reading.index))


def dumps(cluster: Cluster) -> str:
    """Format a cluster as TF_CONFIG on one line; `{}` for `Cluster()`."""
    if not cluster.jobs:
        return "{}"
    task = {"type": cluster.task.type, "index": cluster.task.index}
    return json.dumps({"cluster": cluster.jobs, "task": task})


def findings(text: str, *, look_up: LookUp | None = None) -> tuple[Finding, ...]:
    """Return all errors in a TF_CONFIG, or its warnings if it has no error."""
    reading = _Reading(text)
    found = reading.mistakes or [*cluster_warnings(reading.jobs)]
    if look_up is not None:
        found += lookup_warnings(reading.jobs, look_up)
    return tuple(found)


def format_tf_config(text: str, to: str) -> str:
    """Return a line that sets TF_CONFIG, in one of `FORMATS`."""
    # `docker run --env-file` takes quotes as a part of the value.
    value = shlex.quote(text) if to in ("env", "shell") else text
    return _FORMATS[to].format(value)


class _Reading:
    """Content of a TF_CONFIG, and its mistakes; `{}` is worker 0 without addresses."""

    def __init__(self, text: str, job_names: Mapping[str, str] | None = None) -> None:
        self.jobs: dict[str, tuple[str, ...]] = {}
        self.task_type: Any = "worker"
        self.index: Any = 0
        self.mistakes: list[Finding] = []
        self._job_names = job_names or _JOB_NAMES
        # A service may add keys to a variable of its own.
        self._is_strict = job_names is None
        problem = "must be a JSON object."
        try:
            config = parse_json(text)
        except ValueError as error:
            config, problem = None, f"is not valid JSON: {error}."
        if not isinstance(config, dict):
            fix = "Write it with json.dumps(), as {...} with names in double quotes."
            self._add("TF_CONFIG", problem, repr(text), fix, "not readable")
        # Any other text must hold a cluster and a task: with a misspelt key accepted,
        # each process would train alone.
        elif config:
            self._read(config)

    def _read(self, config: dict[str, Any]) -> None:
        """Read an object that is not empty."""
        if self._is_strict:
            self._check_keys("TF_CONFIG", config, _KEYS)
        if config.get("rpc_layer", "grpc") != "grpc":
            received = json.dumps(config["rpc_layer"])
            problem, fix = 'rpc_layer must be "grpc".', "Leave rpc_layer out."
            self._add("rpc_layer", problem, received, fix, "refused")
        for key, read in {"cluster": self._read_jobs, "task": self._read_task}.items():
            section = config.get(key)
            if isinstance(section, dict):
                read(section)
                continue
            self._add(
                key,
                f'must have an object "{key}".',
                json.dumps(section) if key in config else f"only {', '.join(config)}",
                f'Add "{key}": {_EXAMPLES[key]}, or unset it to train alone.',
                "trains alone" if key == "cluster" else "wrong rank",
            )
        self.mistakes += wrong_addresses(self.jobs)
        if not self.mistakes:
            self.mistakes += wrong_task(self.task_type, self.index, self.jobs)

    def _read_jobs(self, cluster: dict[str, Any]) -> None:
        """Read the object "cluster"."""
        before = len(self.mistakes)
        self._check_keys("cluster", cluster, (*self._job_names, _SPARSE))
        for key, job in self._job_names.items():
            addresses = cluster.get(key, ())
            is_right = isinstance(addresses, list | tuple)
            if not is_right or not all(isinstance(each, str) for each in addresses):
                self._add(
                    f"cluster.{key}",
                    f'cluster.{key} must be a list of "host:port" strings.',
                    json.dumps(addresses),
                    f"Write it as {_ADDRESSES}.",
                    "refused",
                )
            elif addresses:
                self.jobs[job] = (*self.jobs.get(job, ()), *addresses)
        chiefs = self.jobs.get("chief", ())
        if len(chiefs) > 1:
            problem, fix = "cluster has several chiefs.", "Make the others workers."
            self._add("cluster.chief", problem, ", ".join(chiefs), fix, "refused")
        # An empty list of workers is rarely meant: the chief would train alone.
        if len(self.mistakes) == before and (
            not self.jobs or cluster.get("worker") == []
        ):
            problem = "cluster lacks the addresses of workers."
            fix = f"Write it as {_EXAMPLES['cluster']}, or unset it to train alone."
            self._add("cluster", problem, json.dumps(cluster), fix, "trains alone")

    def _read_task(self, task: dict[str, Any]) -> None:
        """Read the object "task"."""
        if self._is_strict:
            self._check_keys("task", task, _TASK_KEYS)
        for key in ("type", "index"):
            if key not in task:
                problem = f'task has no "{key}".'
                fix = f"Write it as {_EXAMPLES['task']}."
                self._add("task", problem, json.dumps(task), fix, "wrong rank")
        job = task.get("type", "worker")
        self.task_type = self._job_names.get(job, job) if isinstance(job, str) else job
        self.index = task.get("index", 0)
        self.mistakes += wrong_type(self.task_type)
        self.mistakes += wrong_index(self.index)

    def _check_keys(
        self, place: str, found: Iterable[str], known: Iterable[str]
    ) -> None:
        """Add a mistake for each unknown key."""
        subject = "" if place == "TF_CONFIG" else f"{place} "
        received = ", ".join(found)
        for key in found:
            if key not in known:
                problem = f'{subject}has an unknown key "{excerpt(key)}".'
                fix = f"Leave it out, or use one of: {', '.join(known)}."
                self._add(place, problem, received, fix, "not used")

    def _add(
        self, place: str, problem: str, received: str, fix: str, effect: str
    ) -> None:
        """Add a mistake."""
        self.mistakes.append(Finding(place, problem, excerpt(received), fix, effect))
