"""Job files: a template for each format, filled in from a cluster."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby
from string import Template

from tfdist.cluster import tf_config
from tfdist.cluster.address import split_address
from tfdist.cluster.hosts.slots import HostSlots, format_hostfile, number_ports
from tfdist.cluster.model import Cluster, Task, cluster_from_jobs

# Kubernetes allows 63 characters, and a pod's name adds a job type and an index.
_NAME = re.compile("[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_NODE = re.compile("[A-Za-z0-9][-A-Za-z0-9._]*")
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}


@dataclass(frozen=True)
class Program:
    """Program of a job: its name, shell command and container image."""

    name: str = "train"
    command: str = "python train.py"
    image: str = ""

    def __post_init__(self) -> None:
        """Raise for a value that would break the file."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "--name must begin with a small letter and have at most 50 small "
                f"letters, digits and hyphens. Received: --name {self.name!r}. "
                "Use one such as train."
            )
        if any(char.isspace() or not char.isprintable() for char in self.image):
            raise ValueError(
                f"--image must be a container image. Received: --image {self.image!r}. "
                "Write it as registry/name:tag."
            )
        try:
            is_line = bool(self.words) and self.command.isprintable()
        except ValueError:  # A quotation mark is not closed.
            is_line = False
        if not is_line:
            raise ValueError(
                "--command must be a line that a shell can run. "
                f"Received: --command {self.command!r}. Close its quotation marks, and "
                "put several lines into a script."
            )

    @property
    def words(self) -> list[str]:
        """The command as a list, without shell expansion."""
        return shlex.split(self.command)


def format_job_file(cluster: Cluster, form: str, program: Program) -> str:
    """Format the file that starts a job, in one of the formats of `JOB_FILES`."""
    if form not in JOB_FILES:
        raise ValueError(
            f"form must be one of {', '.join(JOB_FILES)}. Received: form={form!r}. "
            "Use sbatch for Slurm, kubernetes for a cluster without operators."
        )
    if "image" in JOB_FILES[form] and not program.image:
        raise ValueError(
            f"--image must name the image of the containers of --to {form}. "
            "Received: no --image. Give an image that has the program and tfdist, as "
            "in --image registry/train:1."
        )
    return _WRITERS[form][0](cluster, program)


def _hostfile(cluster: Cluster, program: Program) -> str:
    """Format a hostfile."""
    return format_hostfile(_hosts_of(cluster, "hostfile"))


def _sbatch(cluster: Cluster, program: Program) -> str:
    """Format a script for `sbatch`, in which `srun` starts the tasks."""
    hosts = _hosts_of(cluster, "sbatch")
    slots = _equal_slots(hosts, "sbatch")
    port = _port_of(cluster.workers)
    are_names = all(_NODE.fullmatch(host.host) for host in hosts)
    if not are_names or number_ports(hosts, port) != cluster.workers:
        raise ValueError(
            "--to sbatch has hosts by the names that Slurm gives them, and counts the "
            "ports up on each host, from one that is the same on all. "
            f"Received: {','.join(cluster.workers)}. Give the hosts with -H and "
            "--port, by the names that `sinfo --Node` prints."
        )
    return _fill(
        "sbatch.sh",
        name=program.name,
        nodes=",".join(host.host for host in hosts),
        node_count=len(hosts),
        slots=slots,
        port=port,
        command=program.command,
    )


def _kubernetes(cluster: Cluster, program: Program) -> str:
    """Format an indexed Job and its Service; Kubernetes names the pods."""
    workers = _workers_only(cluster, "kubernetes")
    values = _container(program)
    return _fill(
        "kubernetes.yaml", workers=len(workers), port=_port_of(workers), **values
    )


def _tfjob(cluster: Cluster, program: Program) -> str:
    """Format a TFJob, whose operator names the pods and sets their TF_CONFIG."""
    values = _container(program)
    replicas = [
        _fill(
            "tfjob_replicas.yaml",
            type=_REPLICAS[job],
            count=len(addresses),
            port=_port_of(addresses),
            **values,
        )
        for job, addresses in cluster.jobs.items()
    ]
    return _fill("tfjob.yaml", replicas="".join(replicas).rstrip(), **values)


def _mpijob(cluster: Cluster, program: Program) -> str:
    """Format an MPIJob with a pod for each host; MPI needs no addresses."""
    hosts = _hosts_of(cluster, "mpijob")
    slots = _equal_slots(hosts, "mpijob")
    ranks = str(len(hosts) * slots)
    # Open MPI 5 does not know the operator's variable for this file.
    mpirun = ["mpirun", "--allow-run-as-root", "--hostfile", "/etc/mpi/hostfile"]
    mpirun += ["-np", ranks, "--bind-to", "none", "--map-by", "slot"]
    mpirun += ["-x", "PATH", *program.words]
    values = _container(program)
    return _fill(
        "mpijob.yaml", slots=slots, hosts=len(hosts), mpirun=_quoted(mpirun), **values
    )


def _compose(cluster: Cluster, program: Program) -> str:
    """Format a service for each task, with its TF_CONFIG; service names are hosts."""
    jobs = {
        job: tuple(
            f"{job}-{index}:{split_address(address)[1]}"
            for index, address in enumerate(addresses)
        )
        for job, addresses in cluster.jobs.items()
    }
    inside = cluster_from_jobs(jobs, cluster.task)
    # Compose would expand a single $ from its own environment.
    values = _container(replace(program, command=program.command.replace("$", "$$")))
    services = [
        _fill(
            "compose_service.yaml",
            service=f"{job}-{index}",
            tf_config=tf_config.dumps(replace(inside, task=Task(job, index))),
            **values,
        )
        for job, addresses in jobs.items()
        for index in range(len(addresses))
    ]
    return _fill("compose.yaml", services="".join(services).rstrip(), **values)


_CONTAINER = ("name", "command", "image")
# Each format with its writer, and the fields of `Program` that it uses.
_WRITERS: dict[str, tuple[Callable[[Cluster, Program], str], tuple[str, ...]]] = {
    "hostfile": (_hostfile, ()),
    "sbatch": (_sbatch, ("name", "command")),
    "kubernetes": (_kubernetes, _CONTAINER),
    "tfjob": (_tfjob, _CONTAINER),
    "mpijob": (_mpijob, _CONTAINER),
    "compose": (_compose, _CONTAINER),
}
JOB_FILES = {form: fields for form, (_, fields) in _WRITERS.items()}


def _fill(template: str, **values: object) -> str:
    """Fill in a template."""
    text = (files("tfdist.cluster.templates") / template).read_text()
    return Template(text).substitute(values)


def _container(program: Program) -> dict[str, str]:
    """Return the values that all containers share."""
    return {
        "name": program.name,
        "image": _quoted(program.image),
        "words": _quoted(program.words),
    }


def _quoted(value: str | list[str]) -> str:
    """Format a value as JSON, which is also YAML."""
    return json.dumps(value, ensure_ascii=False)


def _workers_only(cluster: Cluster, form: str) -> tuple[str, ...]:
    """Return the addresses of the workers; raise if the cluster has other jobs."""
    others = [job for job in cluster.jobs if job != "worker"]
    if others:
        raise ValueError(
            f"--to {form} holds workers only, which all run the same. "
            f"Received: also {', '.join(others)}. Make the chief worker 0, and leave "
            "out the others; json, tfjob and compose hold every job."
        )
    return cluster.workers


def _hosts_of(cluster: Cluster, form: str) -> tuple[HostSlots, ...]:
    """Return the hosts of the workers, by rank."""
    workers = _workers_only(cluster, form)
    groups = groupby(workers, key=lambda address: split_address(address)[0])
    runs = [(name, [*addresses]) for name, addresses in groups]
    if len({name for name, _ in runs}) < len(runs):
        raise ValueError(
            f"--to {form} gives ranks to one host after another. "
            f"Received: workers in the order {','.join(workers)}. "
            "Put the workers of each host next to each other."
        )
    return tuple(
        HostSlots(addresses[0].rpartition(":")[0], len(addresses))
        for _, addresses in runs
    )


def _equal_slots(hosts: tuple[HostSlots, ...], form: str) -> int:
    """Return the number of workers on each host; raise if hosts differ."""
    if len({host.slots for host in hosts}) > 1:
        received = ", ".join(f"{host.host}:{host.slots}" for host in hosts)
        raise ValueError(
            f"--to {form} has one number of workers for all hosts. "
            f"Received: {received}. Give each host as many as the others."
        )
    return hosts[0].slots


def _port_of(addresses: tuple[str, ...]) -> int:
    """Return the first port, which all pods can use: each has its own IP address."""
    return split_address(addresses[0])[1]
