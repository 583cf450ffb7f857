"""Job files: a template for each format, filled in from a cluster."""

import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from string import Template

from tfdist.cluster import tf_config
from tfdist.cluster.address import split_address
from tfdist.cluster.hosts import HostSlots, format_hostfile
from tfdist.cluster.model import Cluster, Task, cluster_from_jobs

# Kubernetes allows 63 characters, and a pod's name adds a type, numbers and letters.
_NAME = re.compile("[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
_MOST = 65_535
_NODE = re.compile("[A-Za-z0-9][-A-Za-z0-9._]*")
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}


@dataclass(frozen=True)
class Program:
    """Program of a job: its name, shell command, container image and resources."""

    name: str = "train"
    command: str = "python train.py"
    image: str = ""
    # Of each process.
    cpus: int | None = None
    gpus: int | None = None
    # That of the first process of each node, None if the scheduler decides.
    port: int | None = None

    def __post_init__(self) -> None:
        """Raise for a value that would break the file."""
        _check_number("--cpus", self.cpus)
        _check_number("--gpus", self.gpus)
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "--name must begin with a small letter and have at most 40 small "
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


@dataclass(frozen=True)
class Nodes:
    """Nodes of a batch job, with as many processes on each; without names any nodes."""

    count: int
    slots: int = 1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise for a number that no batch system takes."""
        _check_number("--nodes", self.count)
        _check_number("--ntasks-per-node", self.slots)


def format_job_file(job: Cluster | Nodes, form: str, program: Program) -> str:
    """Format the file that starts a job, in one of the formats of `JOB_FILES`."""
    if "image" in JOB_FILES[form] and not program.image:
        raise ValueError(
            f"--image must name the image of the containers of --to {form}. "
            "Received: no --image. Give an image that has the program and tfdist, as "
            "in --image registry/train:1."
        )
    if form in _BATCH_WRITERS:
        nodes = job if isinstance(job, Nodes) else _nodes_of(job, form)
        return _BATCH_WRITERS[form](nodes, program)
    assert isinstance(job, Cluster)
    return _WRITERS[form](job, program)


def _hostfile(cluster: Cluster, program: Program) -> str:
    """Format a hostfile."""
    return format_hostfile(_hosts_of(cluster, "hostfile"))


def _indexed(form: str, job: str, cluster: Cluster, program: Program) -> str:
    """Format pods that Kubernetes calls `<job>-<index>.<name>`."""
    workers = _workers_only(cluster, form)
    port = _port_of(workers)
    pods = {
        "TFDIST_JOB_NAME": program.name + job,
        "TFDIST_SERVICE": program.name,
        "TFDIST_WORKERS": str(len(workers)),
        "TFDIST_PORT": str(port),
    }
    return _fill(
        f"{form}.yaml",
        workers=len(workers),
        port=port,
        pods=_quoted([{"name": name, "value": value} for name, value in pods.items()]),
        resources=_resources(program),
        **_container(program),
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
            resources=_resources(program, computes=_computes(job, cluster)),
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
    return _fill(
        "mpijob.yaml",
        slots=slots,
        hosts=len(hosts),
        mpirun=_quoted(mpirun),
        resources=_resources(program, processes=slots),
        **_container(program),
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
    gpus = itertools.count()
    services = [
        _fill(
            "compose_service.yaml",
            service=f"{job}-{index}",
            tf_config=tf_config.dumps(replace(inside, task=Task(job, index))),
            deploy=_deploy(program, gpus if _computes(job, cluster) else None),
            **values,
        )
        for job, addresses in jobs.items()
        for index in range(len(addresses))
    ]
    return _fill("compose.yaml", services="".join(services).rstrip(), **values)


def _deploy(program: Program, numbers: Iterator[int] | None) -> str:
    """Return the resources of a service, with the next GPUs of the machine."""
    resources: dict[str, object] = {}
    if program.cpus:
        resources["limits"] = {"cpus": str(program.cpus)}
    if program.gpus and numbers is not None:
        # With a count, each service would take the first ones.
        own = [str(number) for number in itertools.islice(numbers, program.gpus)]
        device = {"driver": "nvidia", "device_ids": own, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    return json.dumps({"resources": resources} if resources else {})


def _sbatch(nodes: Nodes, program: Program) -> str:
    """Format a script for `sbatch`, in which `srun` starts the tasks."""
    return _fill(
        "sbatch.sh",
        name=program.name,
        nodes=nodes.count,
        slots=nodes.slots,
        cpus=program.cpus or 1,
        gpus=_line("#SBATCH --gpus-per-task={}", program.gpus),
        nodelist=_line("#SBATCH --nodelist={}", ",".join(nodes.names)),
        port=_line("export TFDIST_PORT_BASE={}", program.port),
        command=program.command,
    )


def _pbs(nodes: Nodes, program: Program) -> str:
    """Format a script for `qsub`; `tfdist run` reads PBS_NODEFILE."""
    cpus = program.cpus or 1
    # PBS_NODEFILE has a line for each of `mpiprocs`.
    chunk = f"ncpus={cpus * nodes.slots}:mpiprocs={nodes.slots}:ompthreads={cpus}"
    if program.gpus:
        chunk += f":ngpus={program.gpus * nodes.slots}"
    chunks = [f"1:{chunk}:host={name}" for name in nodes.names]
    return _fill(
        "pbs.sh",
        name=program.name,
        select="+".join(chunks) or f"{nodes.count}:{chunk}",
        command=program.command,
    )


def _lsf(nodes: Nodes, program: Program) -> str:
    """Format a script for `bsub`; `tfdist run` reads LSB_DJOB_HOSTFILE."""
    cpus = program.cpus or 1
    on_each = cpus * nodes.slots
    # LSF counts cores, and LSB_DJOB_HOSTFILE has a line for each.
    every = f"""--hostfile <(awk 'NR % {cpus} == 1' "$LSB_DJOB_HOSTFILE") """
    gpus = (program.gpus or 0) * nodes.slots
    return _fill(
        "lsf.sh",
        name=program.name,
        cores=nodes.count * on_each,
        on_each=on_each,
        gpus=_line('#BSUB -gpu "num={}:j_exclusive=yes"', gpus),
        hosts=_line('#BSUB -m "{}"', " ".join(nodes.names)),
        hostfile=every if cpus > 1 else "",
        command=program.command,
    )


_WRITERS: dict[str, Callable[[Cluster, Program], str]] = {
    "hostfile": _hostfile,
    "kubernetes": partial(_indexed, "kubernetes", ""),
    "jobset": partial(_indexed, "jobset", "-worker-0"),
    "trainjob": partial(_indexed, "trainjob", "-node-0"),
    "tfjob": _tfjob,
    "mpijob": _mpijob,
    "compose": _compose,
}
_BATCH_WRITERS: dict[str, Callable[[Nodes, Program], str]] = {
    "sbatch": _sbatch,
    "pbs": _pbs,
    "lsf": _lsf,
}
_PORTS = ("port", "pick_ports")
_CONTAINER = ("name", "command", "image", "cpus", "gpus", *_PORTS)
_BATCH = ("name", "command", "cpus", "gpus", "nodes", "ntasks_per_node")
# Each format with the options that it uses.
JOB_FILES = {
    "hostfile": _PORTS,
    "sbatch": (*_BATCH, "port"),
    "pbs": _BATCH,
    "lsf": _BATCH,
    "kubernetes": _CONTAINER,
    "jobset": _CONTAINER,
    "trainjob": _CONTAINER,
    "tfjob": _CONTAINER,
    "mpijob": _CONTAINER,
    "compose": _CONTAINER,
}


def _line(text: str, value: object) -> str:
    """Return a line of a script, or nothing without a value."""
    return f"{text.format(value)}\n" if value else ""


def _fill(template: str, **values: object) -> str:
    """Fill in a template."""
    text = (files("tfdist.cluster") / "templates" / template).read_text()
    return Template(text).substitute(values)


def _check_number(option: str, value: int | None) -> None:
    """Raise for a number that is no count."""
    if value is not None and not 1 <= value <= _MOST:
        raise ValueError(
            f"{option} must be from 1 to {_MOST}. Received: {option} {value}. "
            "Give another number."
        )


def _container(program: Program) -> dict[str, str]:
    """Return the values that all containers share."""
    return {
        "name": program.name,
        "image": _quoted(program.image),
        "words": _quoted(program.words),
    }


def _resources(program: Program, *, processes: int = 1, computes: bool = True) -> str:
    """Return the limits of a pod with some processes, as Kubernetes takes them."""
    gpus = program.gpus if computes else None
    numbers = {"cpu": program.cpus, "nvidia.com/gpu": gpus}
    limits = {name: processes * number for name, number in numbers.items() if number}
    return json.dumps({"limits": limits} if limits else {})


def _computes(job: str, cluster: Cluster) -> bool:
    """Return whether the tasks of a job compute, and can use a GPU."""
    # The chief of a job with parameter servers hands out the work.
    return job != "ps" and not (job == "chief" and cluster.ps)


def _quoted(value: object) -> str:
    """Format a value as JSON, which is also YAML."""
    return json.dumps(value, ensure_ascii=False)


def _workers_only(cluster: Cluster, form: str) -> tuple[str, ...]:
    """Return the addresses of the workers; raise if the cluster has other jobs."""
    others = [job for job in cluster.jobs if job != "worker"]
    if others:
        remedy = ""
        if not cluster.ps:
            remedy = ", or make the chief worker 0, and leave out the others"
        elif form in _BATCH_WRITERS:
            remedy = ", or write tfdist run --workers N --ps M train.py into a script"
        raise ValueError(
            f"--to {form} holds workers only, which all run the same. "
            f"Received: also {', '.join(others)}. Take json, tfjob or compose, which "
            f"hold every job{remedy}."
        )
    return cluster.workers


def _hosts_of(cluster: Cluster, form: str) -> tuple[HostSlots, ...]:
    """Return the hosts of the workers, by rank."""
    workers = _workers_only(cluster, form)
    groups = itertools.groupby(workers, key=lambda address: split_address(address)[0])
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


def _nodes_of(cluster: Cluster, form: str) -> Nodes:
    """Return the nodes of the workers, by name."""
    hosts = _hosts_of(cluster, form)
    names = tuple(host.host for host in hosts)
    if not all(map(_NODE.fullmatch, names)):
        raise ValueError(
            f"--to {form} has hosts by the names that the batch system gives them. "
            f"Received: {','.join(names)}. Give these names, or --nodes and "
            "--ntasks-per-node for any that are free."
        )
    return Nodes(len(hosts), _equal_slots(hosts, form), names)


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
