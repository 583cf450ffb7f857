"""On which hosts the ranks of a job are, and what has to be there before they start."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdist.launch.cores import available_cores
from tfdist.launch.hosts import Hosts, fill
from tfdist.launch.job import Job
from tfdist.launch.machine import Machine
from tfdist.launch.plan import plan_on
from tfdist.launch.ports import free_ports
from tfdist.launch.remote import RemoteRanks
from tfdist.launch.remote_host import Patience, RemoteHost
from tfdist.launch.spec import ProcessSpec
from tfdist.launch.this_machine import is_this_machine
from tfdist.launch.versions import installed_versions

_RUN_ID_BYTES = 8


@dataclass(frozen=True)
class Placement:
    """The processes of a job, and the hosts on which they are.

    Args:
        specs: The processes, by rank.
        remote: The hosts that are not this one, by name.
    """

    specs: Sequence[ProcessSpec]
    remote: Mapping[str, RemoteRanks]


@contextlib.contextmanager
def placed(
    job: Job, hosts: Hosts, signals: socket.socket | None = None
) -> Iterator[Placement]:
    """Have everything ready on the hosts of a job.

    Args:
        job: What is to be run.
        hosts: Where.
        signals: Where signals to the launcher are read from, any of which ends the
            waiting. Default None.

    Yields:
        The processes, ready to be started; the hosts are left afterwards.

    Raises:
        OSError: If hosts cannot be used; the message names all of them.
        KeyboardInterrupt: If a signal has come meanwhile.
        ValueError: If the job does not fit on the hosts.
    """
    patience = Patience(time.monotonic() + hosts.start_timeout_seconds, signals)
    slots = fill(hosts, job.process_count)
    with contextlib.ExitStack() as stack:
        connections = {}
        for one in slots:
            if not is_this_machine(one.host):
                host = RemoteHost(one.host, ssh=hosts.ssh, python=hosts.python)
                connections[one.host] = host
                stack.callback(host.close)
        _connect(connections, patience)
        machines = []
        for one in slots:
            if one.host in connections:
                ports, cores = connections[one.host].prepare(one.slots, patience)
            else:
                ports, cores = free_ports(one.slots, host=""), [*available_cores()]
            machines.append(Machine(one.host, tuple(ports), tuple(cores)))
        remote = {name: RemoteRanks(host) for name, host in connections.items()}
        for ranks in remote.values():
            stack.callback(ranks.close)
        yield Placement(_plan(job, machines), remote)


def supposed(job: Job, hosts: Hosts) -> list[ProcessSpec]:
    """Work out the processes of a job without a word to its hosts.

    Args:
        job: What is to be run.
        hosts: Where.

    Returns:
        The processes, as if the hosts had this one's cores and free ports.

    Raises:
        ValueError: If the job does not fit on the hosts.
    """
    slots = fill(hosts, job.process_count)
    cores = available_cores()
    machines = [Machine(one.host, tuple(free_ports(one.slots)), cores) for one in slots]
    return _plan(job, machines)


def _plan(job: Job, machines: Sequence[Machine]) -> list[ProcessSpec]:
    """Work out the processes of a job on its machines."""
    run_id = os.urandom(_RUN_ID_BYTES).hex()
    return plan_on(job, machines, run_id=run_id, environ=os.environ)


def _connect(connections: Mapping[str, RemoteHost], patience: Patience) -> None:
    """Wait for all agents; say what is wrong on every host at once."""
    here, failures = installed_versions(), []
    for name, host in connections.items():
        try:
            there = host.connect(patience)
        except OSError as error:
            failures.append(str(error))
            continue
        differences = [
            f"{what} {there.get(what)}, here {version}"
            for what, version in here.items()
            if there.get(what) != version
        ]
        if differences:
            failures.append(
                f"Other versions are installed on {name}. Received: "
                f"{'; '.join(differences)}, in {host.python}. "
                "Make the same environment there as here."
            )
    if failures:
        raise OSError("\n".join(failures))
