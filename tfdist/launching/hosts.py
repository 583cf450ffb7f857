"""Hosts or pods of a job, and the placement of its processes on them."""

import concurrent.futures
import contextlib
import os
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfdist.cluster import Cluster
from tfdist.cluster.address import is_loopback, split_address
from tfdist.cluster.hosts import HostSlots, number_ports
from tfdist.launching.events import ending_signal
from tfdist.launching.job import SLOT_VARIABLE, Job, ProcessSpec
from tfdist.launching.machine import (
    Machine,
    free_ports,
    installed_versions,
    is_this_machine,
)
from tfdist.launching.plan import new_run_id, plan
from tfdist.launching.remote.host import DEFAULT_SSH, RemoteHost
from tfdist.launching.restarts import Restarts
from tfdist.rendezvous.wire import Message

# A constant is unique enough: no other job uses the addresses of these pods.
_RUN_ID_OF_PODS = "pods"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job in rank order, and the commands that reach them."""

    slots: tuple[HostSlots, ...]
    ssh: str = DEFAULT_SSH
    python: str = sys.executable
    start_timeout_seconds: float = 60.0

    @property
    def host_of_slots(self) -> tuple[str, ...]:
        """The host of each slot."""
        return tuple(one.host for one in self.slots for _ in range(one.slots))

    def check(self, job: Job, restarts: Restarts) -> None:
        """Refuse a job with too many processes or with options for one machine."""
        fill(self, range(job.process_count))
        if restarts.max_restarts and job.process_count > 1:
            # A restart may have ranks on any of the hosts.
            _check_names(self.host_of_slots)
        if job.collective in ("mpi", "horovod"):
            names = ",".join(f"{one.host}:{one.slots}" for one in self.slots)
            raise ValueError(
                f"--collective {job.collective} joins processes of this machine only. "
                f"Received: the hosts {names}. Let mpirun start them: mpirun -np "
                f"{job.process_count} -H {names} {shlex.join(job.command)}; under "
                "Slurm: srun --mpi=pmix."
            )


@dataclass(frozen=True)
class Pods:
    """The pods of a Kubernetes job, each with the same number of ranks."""

    cluster: Cluster

    def check(self, job: Job, restarts: Restarts) -> None:
        """Refuse a job that needs one launcher for all of its processes."""
        if job.size is None or job.collective in ("mpi", "horovod"):
            wanted = f"--collective {job.collective}"
            wanted = "parameter servers" if job.size is None else wanted
            raise ValueError(
                "Each pod of a Kubernetes job starts ranks that are all alike, joined "
                f"by TensorFlow. Received: {wanted}. Give -np, or unset "
                "TFDIST_JOB_NAME to start a job in this pod alone."
            )
        if restarts.max_restarts:
            raise ValueError(
                "--max-restarts starts all processes again, and a pod cannot start "
                "those of other pods. Received: --max-restarts "
                f"{restarts.max_restarts}. Let Kubernetes start the pods again: "
                "backoffLimit of the Job."
            )


# The processes of a job by rank, and the connections to other hosts by name.
Placement = tuple[Sequence[ProcessSpec], Mapping[str, RemoteHost]]


class InterruptedBy(Exception):
    """The name of a signal that ends a run whose hosts are not yet connected."""


class UnusableHosts(OSError):
    """The failures of all hosts that do not answer, or lack what the job needs."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        super().__init__("\n".join(failures.values()))
        self.names, self.text = tuple(failures), " ".join(failures.values())


def fill(hosts: Hosts, slots: Sequence[int]) -> tuple[HostSlots, ...]:
    """Return the hosts of some slots, with the number of those on each."""
    places = hosts.host_of_slots
    if len(slots) > len(places):
        raise ValueError(
            "The hosts have too few slots for the processes of the job. "
            f"Received: {len(slots)} processes, {len(places)} slots. "
            "Start fewer processes, or give a host more slots, as in node1:4."
        )
    used = Counter(places[slot] for slot in slots)
    _check_names(used)
    return tuple(
        replace(host, slots=used[host.host]) for host in hosts.slots if used[host.host]
    )


def _check_names(hosts: Collection[str]) -> None:
    """Refuse a name that means another machine on each of several hosts."""
    names = {split_address(f"{host}:1")[0] for host in hosts}
    local = sorted(filter(is_loopback, names))
    if local and len(names) > 1:
        raise ValueError(
            "A host among several needs a name by which the others reach it. "
            f"Received: {local[0]}. Give the name of this machine in its network."
        )


@contextlib.contextmanager
def planned_on_hosts(
    job: Job,
    hosts: Hosts,
    slots: Sequence[int],
    signals: socket.socket | None = None,
) -> Iterator[Placement]:
    """Connect to the hosts of some slots, and plan the job on their resources.

    Raises:
        InterruptedBy: If a signal to end comes first.
    """
    deadline = time.monotonic() + hosts.start_timeout_seconds
    taken = fill(hosts, slots)
    with contextlib.ExitStack() as stack:
        remote = {}
        for one in taken:
            if not is_this_machine(one.host):
                remote[one.host] = RemoteHost(
                    one.host, one.slots, ssh=hosts.ssh, python=hosts.python
                )
                stack.callback(remote[one.host].close)
        hellos = _hellos(remote, hosts.python, deadline, signals)
        machines = [_machine_of(one, hellos.get(one.host)) for one in taken]
        specs = plan(
            job,
            machines,
            run_id=new_run_id(),
            environ=os.environ,
            slots=range(len(slots)),
        )
        yield _numbered(specs, slots), remote


def _numbered(specs: Sequence[ProcessSpec], slots: Sequence[int]) -> list[ProcessSpec]:
    """Give processes the numbers of their slots among those of all hosts."""
    numbers = [{SLOT_VARIABLE: str(slot)} for slot in slots]
    return [
        replace(spec, env={**spec.env, **number}) if spec.task is None else spec
        for spec, number in zip(specs, numbers, strict=True)
    ]


def plan_unconnected(job: Job, hosts: Hosts) -> list[ProcessSpec]:
    """Plan a job as if all hosts had this machine's cores and free ports."""
    slots = fill(hosts, range(job.process_count))
    here = Machine.here("", ())
    machines = [
        replace(here, host=one.host, ports=tuple(free_ports(one.slots)))
        for one in slots
    ]
    return plan(job, machines, run_id=new_run_id(), environ=os.environ)


def plan_in_pod(job: Job, pods: Pods) -> list[ProcessSpec]:
    """Plan the processes of this pod, with their ranks in the whole job."""
    assert job.size is not None
    here, machines = Machine.here("", ()), []
    for address in pods.cluster.workers:
        host, _, port = address.rpartition(":")
        addresses = number_ports((HostSlots(host, job.size),), int(port))
        ports = tuple(split_address(one)[1] for one in addresses)
        machines.append(replace(here, host=host, ports=ports))
    specs = plan(
        replace(job, size=job.size * len(machines)),
        machines,
        run_id=_RUN_ID_OF_PODS,
        environ=os.environ,
    )
    first = pods.cluster.task.index * job.size
    own = specs[first : first + job.size]
    return [replace(spec, host=None) for spec in own]


def _machine_of(one: HostSlots, hello: Message | None) -> Machine:
    """Return a host as its agent has introduced it, or this one without an agent."""
    if hello is None:
        return Machine.here(one.host, free_ports(one.slots, host=""))
    return Machine(
        one.host,
        tuple(hello["ports"]),
        tuple(hello["cores"]),
        tuple(map(tuple, hello["gpus"])),
        hello["visible"],
        hello["quota"],
    )


def _hellos(
    remote: Mapping[str, RemoteHost],
    python: str,
    deadline: float,
    signals: socket.socket | None,
) -> dict[str, Message]:
    """Wait for all agents; raise one error that lists the failures of all hosts."""
    here, hellos = installed_versions(), {}
    failures: dict[str, str] = {}
    for name, host in remote.items():
        while not host.hello.done() and time.monotonic() < deadline:
            concurrent.futures.wait([host.hello], _POLL_SECONDS)
            if number := ending_signal(signals):
                raise InterruptedBy(number.name)
        try:
            hello = hellos[name] = host.hello.result(timeout=0)
        except TimeoutError as error:
            failures[name] = host.explain(error)
            continue
        except OSError as error:
            failures[name] = str(error)
            continue
        differences = [
            f"{what} {hello['versions'].get(what)}, here {version}"
            for what, version in here.items()
            if hello["versions"].get(what) != version
        ]
        if differences:
            failures[name] = (
                f"Other versions are installed on {name}. Received: "
                f"{'; '.join(differences)}, in {python}. "
                "Make the same environment there as here."
            )
        elif "refusal" in hello:
            failures[name] = f"On {name}: {hello['refusal']}"
    if failures:
        raise UnusableHosts(failures)
    return hellos
