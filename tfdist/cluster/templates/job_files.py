"""The job files: a template for each format, and the values that a cluster gives it."""

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

# A name in Kubernetes has 63 characters, and that of a pod ends in its job and index.
_NAME = re.compile("[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_NODE = re.compile("[A-Za-z0-9][-A-Za-z0-9._]*")
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}


@dataclass(frozen=True)
class Program:
    """The program of a job, its name and its container image.

    Args:
        name: The name of the job: small letters, digits and hyphens, at most 50, as
            Kubernetes requires. Default "train".
        command: A line for a shell. Default "python train.py".
        image: The container image; "" without containers. Default "".

    Raises:
        ValueError: If one of them would break the file.

    Example:
        >>> Program(command="python train.py --name 'a b'").words
        ['python', 'train.py', '--name', 'a b']
    """

    name: str = "train"
    command: str = "python train.py"
    image: str = ""

    def __post_init__(self) -> None:
        """Check each of them."""
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
        if not self.command.isprintable() or not self._is_line():
            raise ValueError(
                "--command must be a line that a shell can run. "
                f"Received: --command {self.command!r}. Close its quotation marks, and "
                "put several lines into a script."
            )

    @property
    def words(self) -> list[str]:
        """The command as a list, in which no shell expands anything."""
        return shlex.split(self.command)

    def _is_line(self) -> bool:
        """Return whether there is a word, and every quotation mark is closed."""
        try:
            return bool(self.words)
        except ValueError:
            return False


def format_job_file(cluster: Cluster, form: str, program: Program) -> str:
    r"""Write the file that starts a job, in one of the formats of `JOB_FILES`.

    Example:
        >>> format_job_file(Cluster(workers=("a:2222",)), "hostfile", Program())
        'a slots=1\n'
    """
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
    return _WRITERS[form](cluster, program)


def _hostfile(cluster: Cluster, program: Program) -> str:
    """Write a hostfile."""
    return format_hostfile(_hosts_of(cluster, "hostfile"))


def _sbatch(cluster: Cluster, program: Program) -> str:
    """Write a script for `sbatch`, in which `srun` starts the tasks."""
    hosts = _hosts_of(cluster, "sbatch")
    slots = _equal_slots(hosts, "sbatch")
    for host in hosts:
        if not _NODE.fullmatch(host.host):
            raise ValueError(
                "--to sbatch has hosts by the names that Slurm gives them. "
                f"Received: {host.host}. Use the names that `sinfo --Node` prints."
            )
    port = _port_of(cluster.workers)
    if number_ports(hosts, port) != cluster.workers:
        raise ValueError(
            "--to sbatch counts the ports up on each host, from one that is the same "
            f"on all. Received: {','.join(cluster.workers)}. "
            "Give the hosts with -H and --port."
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
    """Write an indexed Job and its Service; Kubernetes names the pods."""
    workers = _workers_only(cluster, "kubernetes")
    values = _container(program)
    return _fill(
        "kubernetes.yaml", workers=len(workers), port=_port_of(workers), **values
    )


def _tfjob(cluster: Cluster, program: Program) -> str:
    """Write a TFJob; its operator names the pods and writes TF_CONFIG for each."""
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
    """Write an MPIJob with a pod for each host, which MPI needs no addresses for."""
    hosts = _hosts_of(cluster, "mpijob")
    slots = _equal_slots(hosts, "mpijob")
    ranks = str(len(hosts) * slots)
    mpirun = ["mpirun", "--allow-run-as-root", "-np", ranks, "--bind-to", "none"]
    mpirun += ["--map-by", "slot", "-x", "PATH", *program.words]
    values = _container(program)
    return _fill(
        "mpijob.yaml", slots=slots, hosts=len(hosts), mpirun=_quoted(mpirun), **values
    )


def _compose(cluster: Cluster, program: Program) -> str:
    """Write a service for each task, with its TF_CONFIG; the names are the hosts."""
    jobs = {
        job: tuple(
            f"{job}-{index}:{split_address(address)[1]}"
            for index, address in enumerate(addresses)
        )
        for job, addresses in cluster.jobs.items()
    }
    inside = cluster_from_jobs(jobs, cluster.task)
    # Compose would put variables of its own environment where a $ stands.
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


_WRITERS: dict[str, Callable[[Cluster, Program], str]] = {
    "hostfile": _hostfile,
    "sbatch": _sbatch,
    "kubernetes": _kubernetes,
    "tfjob": _tfjob,
    "mpijob": _mpijob,
    "compose": _compose,
}
# Each format, and the parts of a `Program` in it.
JOB_FILES: dict[str, tuple[str, ...]] = {
    form: ("name", "command", "image") for form in _WRITERS
} | {"hostfile": (), "sbatch": ("name", "command")}


def _fill(template: str, **values: object) -> str:
    """Return a template with its values."""
    text = (files("tfdist.cluster.templates") / template).read_text()
    return Template(text).substitute(values)


def _container(program: Program) -> dict[str, str]:
    """Return the values that all containers have."""
    return {
        "name": program.name,
        "image": _quoted(program.image),
        "words": _quoted(program.words),
    }


def _quoted(value: str | list[str]) -> str:
    """Return a value as JSON, which is YAML as well."""
    return json.dumps(value, ensure_ascii=False)


def _workers_only(cluster: Cluster, form: str) -> tuple[str, ...]:
    """Return the addresses of a cluster that has workers only."""
    others = [job for job in cluster.jobs if job != "worker"]
    if others:
        raise ValueError(
            f"--to {form} holds workers only, which all run the same. "
            f"Received: also {', '.join(others)}. Make the chief worker 0, and leave "
            "out the others; json, tfjob and compose hold every job."
        )
    return cluster.workers


def _hosts_of(cluster: Cluster, form: str) -> tuple[HostSlots, ...]:
    """Return the hosts of the workers in the order of the ranks."""
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
    """Return the number of workers that every host has."""
    if len({host.slots for host in hosts}) > 1:
        received = ", ".join(f"{host.host}:{host.slots}" for host in hosts)
        raise ValueError(
            f"--to {form} has one number of workers for all hosts. "
            f"Received: {received}. Give each host as many as the others."
        )
    return hosts[0].slots


def _port_of(addresses: tuple[str, ...]) -> int:
    """Return the first port, which all pods can have: each has its own IP address."""
    return split_address(addresses[0])[1]
