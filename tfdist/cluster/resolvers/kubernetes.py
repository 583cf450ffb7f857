"""Clusters of the pods of a Job, a StatefulSet, Volcano or Kubeflow Trainer."""

import json
import os
import re
from collections.abc import Mapping

from tfdist.cluster import tf_config
from tfdist.cluster.address import parse_digits
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.launchers import ClusterResolver, received

# The pod template must set them, because Kubernetes does not tell a pod these facts.
# https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
_NAMES = ("TFDIST_JOB_NAME", "TFDIST_SERVICE", "TFDIST_WORKERS")
_DEFAULT_PORT = "2222"
# A limit that catches typing errors.
_MOST_WORKERS = 10_000
# The pods of each task of a Job of Volcano.
_PODS = re.compile("VC_(.+)_HOSTS")
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SERVICE = rf"{_LABEL}(?:\.{_LABEL})*"


def allocated_pods(env: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the pods of this job; None outside of one, or under `tfdist run`."""
    if env.get("TFDIST_RUN_ID") or not KUBERNETES.recognises(env):
        return None
    return KUBERNETES.resolve(env)


def _read_pods(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from the variables of the pod."""
    # Each pod is the worker `<job>-<index>.<service>:<port>`. Its index is
    # JOB_COMPLETION_INDEX in an indexed Job, and the end of HOSTNAME in a StatefulSet.
    job, service, size, port = _pod_template(env)
    index = _index(env, job)
    if index >= size:
        raise ValueError(
            f"The index of this pod must be from 0 to {size - 1}, as there are "
            f"no more pods. Received: index {index}, TFDIST_WORKERS={size}. "
            "Set TFDIST_WORKERS to the completions of the Job, or to the replicas "
            "of the StatefulSet."
        )
    return _workers(job, service, size, port, index)


def _volcano_pods(env: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the pods that Volcano has listed, by variable."""
    # Not items(): of the variables read, `explain` names these only.
    names = [name for name in [*env] if _PODS.fullmatch(name)]
    return {name: env[name].split(",") for name in names}


def _read_volcano(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from the names of the pods; this pod is one of them."""
    lists = _volcano_pods(env)
    port = _port(env)
    cluster, task = {}, None
    for name, pods in lists.items():
        found = _PODS.fullmatch(name)
        job = "worker" if len(lists) == 1 or not found else found[1].lower()
        cluster[job] = [f"{pod}:{port}" for pod in pods]
        names = [pod.partition(".")[0] for pod in pods]
        if env.get("HOSTNAME") in names:
            task = {"type": job, "index": names.index(env["HOSTNAME"])}
    if task is None:
        raise ValueError(
            "No variable of Volcano gives the place of this pod. Received: "
            f"{received(env, 'HOSTNAME')}, which is not in {', '.join(lists)}. "
            "Do without hostNetwork, or set TF_CONFIG in each pod."
        )
    text = json.dumps({"cluster": cluster, "task": task})
    return tf_config.loads(text, name=", ".join(lists))


def _is_of_trainer(env: Mapping[str, str]) -> bool:
    """Return whether Kubeflow Trainer has started this pod, and others."""
    rank, size = env.get("PET_NODE_RANK"), env.get("PET_NNODES") or "1"
    return bool(rank) and (rank, size) != ("0", "1")


def _read_trainer(env: Mapping[str, str]) -> Cluster:
    """Read the cluster from the variables for `torchrun`, which was not started."""
    # Pod i is the worker `<job>-<i>.<service>:<port>`, and pod 0 is the master.
    master = re.fullmatch(
        rf"({_LABEL})-0\.({_SERVICE})", env.get("PET_MASTER_ADDR", "")
    )
    size = parse_digits(env.get("PET_NNODES", "")) or 0
    rank = parse_digits(env["PET_NODE_RANK"])
    each = env.get("PET_NPROC_PER_NODE", "1")
    _check(
        env,
        "Give the TrainJob a number as numNodes and 1 as numProcPerNode, write it with "
        "`tfdist config build --to trainjob`, or unset PET_NODE_RANK to train alone.",
        PET_NNODES=(0 < size <= _MOST_WORKERS, f"a number from 1 to {_MOST_WORKERS}"),
        PET_NODE_RANK=(
            rank in range(size),
            "the index of this pod, from 0 to PET_NNODES - 1",
        ),
        PET_NPROC_PER_NODE=(each == "1", "1 where torchrun does not start the program"),
        PET_MASTER_ADDR=(master, "the name of pod 0, as in train-node-0-0.train"),
    )
    assert master is not None
    job, service = master.groups()
    return _workers(job, service, size, _port(env), rank or 0)


def _workers(job: str, service: str, size: int, port: int, index: int) -> Cluster:
    """Return the cluster of pods that are numbered by their names."""
    return Cluster(
        workers=tuple(f"{job}-{pod}.{service}:{port}" for pod in range(size)),
        task=Task("worker", index),
    )


def _check(env: Mapping[str, str], remedy: str, **rules: tuple[object, str]) -> None:
    """Raise for the first variable that is not valid: whether it is, and its rule."""
    for name, (is_valid, rule) in rules.items():
        if not is_valid:
            raise ValueError(
                f"{name} must be {rule}. Received: {received(env, name)}. {remedy}"
            )


def _pod_template(env: Mapping[str, str]) -> tuple[str, str, int, int]:
    """Return the name of the job, the service, the number of pods and the port."""
    job, service = env.get("TFDIST_JOB_NAME", ""), env.get("TFDIST_SERVICE", "")
    size = parse_digits(env.get("TFDIST_WORKERS", "")) or 0
    is_job = re.fullmatch(_LABEL, job)
    is_service = re.fullmatch(_SERVICE, service)
    is_size = 1 <= size <= _MOST_WORKERS
    _check(
        env,
        "Set it in the pod template, as in the example of docs/clusters.md.",
        TFDIST_JOB_NAME=(is_job, "the name of the Job or the StatefulSet"),
        TFDIST_SERVICE=(is_service, "the name of the headless service of the pods"),
        TFDIST_WORKERS=(is_size, f"the number of pods, from 1 to {_MOST_WORKERS}"),
    )
    return job, service, size, _port(env)


def _port(env: Mapping[str, str]) -> int:
    """Return the port of all pods."""
    # Kubernetes sets it to an address where a Service is called tfdist.
    port = parse_digits(env.get("TFDIST_PORT") or _DEFAULT_PORT) or 0
    if not 1 <= port <= 65_535:
        raise ValueError(
            "TFDIST_PORT must be a port from 1 to 65535. Received: "
            f"{received(env, 'TFDIST_PORT')}. Set it in the pod template."
        )
    return port


def _index(env: Mapping[str, str], job: str) -> int:
    """Return the index of this pod."""
    if env.get("JOB_COMPLETION_INDEX"):
        index = parse_digits(env["JOB_COMPLETION_INDEX"])
        if index is None:
            raise ValueError(
                "JOB_COMPLETION_INDEX must be a whole number. "
                f"Received: {received(env, 'JOB_COMPLETION_INDEX')}. "
                "Leave it as Kubernetes sets it."
            )
        return index
    # HOSTNAME may be the full name, with the service after the first dot.
    pod = env.get("HOSTNAME", "").partition(".")[0]
    name, _, digits = pod.rpartition("-")
    index = parse_digits(digits)
    if name != job or index is None:
        raise ValueError(
            "No variable gives the index of this pod. Received: no "
            f"JOB_COMPLETION_INDEX, and {received(env, 'HOSTNAME')}. Give the Job "
            f"completionMode: Indexed, or call the StatefulSet {job}, as "
            "TFDIST_JOB_NAME says."
        )
    return index


KUBERNETES = ClusterResolver(
    "kubernetes",
    "Kubernetes",
    lambda env: any(map(env.get, _NAMES)),
    _read_pods,
    of_container=True,
)
# https://volcano.sh/en/docs/user-guide/how_to_use_svc_plugin/
VOLCANO = ClusterResolver(
    "volcano",
    "Volcano",
    lambda env: any(pods != [""] for pods in _volcano_pods(env).values()),
    _read_volcano,
    of_container=True,
)
# https://github.com/kubeflow/trainer/blob/master/pkg/runtime/framework/plugins/torch
TRAINJOB = ClusterResolver(
    "trainjob", "Kubeflow Trainer", _is_of_trainer, _read_trainer, of_container=True
)
