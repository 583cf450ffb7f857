"""A cluster of the pods of one indexed Job or one StatefulSet of Kubernetes.

Names: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/.
"""

import re
from collections.abc import Mapping

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.json_variable import excerpt
from tfdist.cluster.resolvers.process_launcher import has_process_launcher

# What the pod template must set, as Kubernetes tells a pod none of it.
_NAMES = ("TFDIST_JOB_NAME", "TFDIST_SERVICE", "TFDIST_WORKERS")
_DEFAULT_PORT = "2222"
# More than any Kubernetes has pods of one job; a slip of the keyboard has more digits.
_MOST_WORKERS = 10_000
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"


class KubernetesResolver:
    """Reads the index of a pod, and from the pod template what the others are called.

    Each pod is a worker at `<job>-<index>.<service>:<port>`. Kubernetes tells a pod of
    an indexed Job its JOB_COMPLETION_INDEX, and a pod of a StatefulSet its HOSTNAME
    `<name>-<index>`, but neither how many there are nor by which name they are found.
    The pod template sets that:

    - TFDIST_JOB_NAME: the name of the Job or of the StatefulSet;
    - TFDIST_SERVICE: the headless service, which is also the pods' subdomain;
    - TFDIST_WORKERS: how many pods there are, its completions or replicas;
    - TFDIST_PORT: the port of each; 2222 if it is not set.

    Example:
        >>> env = {"TFDIST_JOB_NAME": "train", "TFDIST_SERVICE": "peers"}
        >>> env |= {"TFDIST_WORKERS": "2", "JOB_COMPLETION_INDEX": "1"}
        >>> KubernetesResolver().resolve(env).address
        'train-1.peers:2222'
    """

    name = "kubernetes"
    launcher = "Kubernetes"

    def recognises(self, env: Mapping[str, str]) -> bool:
        """Say whether a pod template has set a variable of ours."""
        is_described = any(env.get(name) for name in _NAMES)
        return is_described and not has_process_launcher(env)

    def resolve(self, env: Mapping[str, str]) -> Cluster:
        """Read the cluster from the variables of the pod."""
        job = _job_name(env)
        service = _service(env)
        size = _size(env)
        port = _port(env)
        index = _index(env, job)
        if index >= size:
            raise ValueError(
                f"The index of this pod must be from 0 to {size - 1}, as there are "
                f"no more pods. Received: index {index}, TFDIST_WORKERS={size}. "
                "Set TFDIST_WORKERS to the completions of the Job, or to the replicas "
                "of the StatefulSet."
            )
        return Cluster(
            workers=tuple(f"{job}-{pod}.{service}:{port}" for pod in range(size)),
            task=Task("worker", index),
        )


def _job_name(env: Mapping[str, str]) -> str:
    """Return what the names of the pods begin with."""
    name = env.get("TFDIST_JOB_NAME", "")
    if not re.fullmatch(_LABEL, name):
        raise ValueError(
            "TFDIST_JOB_NAME must be the name of the Job or of the StatefulSet. "
            f"Received: {_received(env, 'TFDIST_JOB_NAME')}. Set it in the pod "
            "template to metadata.name: small letters, digits and hyphens."
        )
    return name


def _service(env: Mapping[str, str]) -> str:
    """Return the name under which Kubernetes finds the pods."""
    service = env.get("TFDIST_SERVICE", "")
    if not re.fullmatch(rf"{_LABEL}(?:\.{_LABEL})*", service):
        raise ValueError(
            "TFDIST_SERVICE must be the name of the headless service of the pods. "
            f"Received: {_received(env, 'TFDIST_SERVICE')}. Set it in the pod template "
            "to the same name as the subdomain or serviceName."
        )
    return service


def _size(env: Mapping[str, str]) -> int:
    """Return how many pods there are."""
    size = _digits(env.get("TFDIST_WORKERS", ""))
    if size is None or not 1 <= size <= _MOST_WORKERS:
        raise ValueError(
            f"TFDIST_WORKERS must be a whole number from 1 to {_MOST_WORKERS}. "
            f"Received: {_received(env, 'TFDIST_WORKERS')}. Set it in the pod template "
            "to the completions of the Job, or to the replicas of the StatefulSet."
        )
    return size


def _port(env: Mapping[str, str]) -> int:
    """Return the port of each pod."""
    port = _digits(env.get("TFDIST_PORT") or _DEFAULT_PORT)
    if port is None or not 1 <= port <= 65535:
        raise ValueError(
            "TFDIST_PORT must be a port from 1 to 65535. "
            f"Received: {_received(env, 'TFDIST_PORT')}. Set it in the pod template: "
            "Kubernetes sets it to an address where a Service is called tfdist."
        )
    return port


def _index(env: Mapping[str, str], job: str) -> int:
    """Return which pod this is."""
    if env.get("JOB_COMPLETION_INDEX"):
        index = _digits(env["JOB_COMPLETION_INDEX"])
        if index is None:
            raise ValueError(
                "JOB_COMPLETION_INDEX must be a whole number. "
                f"Received: {_received(env, 'JOB_COMPLETION_INDEX')}. "
                "Leave it as Kubernetes sets it."
            )
        return index
    # A pod may have its full name, with the service behind the first point.
    pod = env.get("HOSTNAME", "").partition(".")[0]
    name, _, number = pod.rpartition("-")
    index = _digits(number)
    if name != job or index is None:
        raise ValueError(
            "Nothing tells which pod of the job this is. Received: no "
            f"JOB_COMPLETION_INDEX, and {_received(env, 'HOSTNAME')}. Give the Job "
            f"completionMode: Indexed, or call the StatefulSet {job}, as "
            "TFDIST_JOB_NAME says."
        )
    return index


def _digits(value: str) -> int | None:
    """Return a whole number, or None for what is none or far too long."""
    is_number = value.isascii() and value.isdigit() and len(value) <= 9
    return int(value) if is_number else None


def _received(env: Mapping[str, str], name: str) -> str:
    """Say what a variable holds."""
    return f"{name}={excerpt(env[name])}" if env.get(name) else f"no {name}"
