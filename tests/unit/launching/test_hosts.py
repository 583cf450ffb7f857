"""Where the processes of a job are placed."""

import signal
import socket
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tfdist.cluster import Cluster, Task, detect
from tfdist.cluster.hosts import HostSlots
from tfdist.launching import hosts as hosts_module
from tfdist.launching.hosts import (
    Hosts,
    InterruptedBy,
    Pods,
    fill,
    plan_in_pod,
    planned_on_hosts,
)
from tfdist.launching.job import Job
from tfdist.launching.machine import installed_versions
from tfdist.launching.restarts import Restarts

TWO = Hosts((HostSlots("a", 2), HostSlots("b", 2)))
PROGRAM = ("/bin/true",)


@pytest.mark.parametrize(
    ("count", "slots"), [(4, [2, 2]), (3, [2, 1]), (2, [2]), (1, [1])]
)
def test_hosts_are_filled_in_order(count, slots):
    assert [host.slots for host in fill(TWO, range(count))] == slots


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
def test_a_name_that_means_each_host_itself_is_refused_among_several(name):
    hosts = Hosts((HostSlots("a"), HostSlots(name)))

    assert fill(Hosts((HostSlots(name, 2),)), range(2)) == (HostSlots(name, 2),)
    message = "^A host among several needs a name by which the others reach it."
    with pytest.raises(ValueError, match=message):
        fill(hosts, range(2))
    # A restart may need both, though the first start does not.
    hosts = Hosts((HostSlots("a", 2), HostSlots(name)))
    hosts.check(Job(PROGRAM, size=2), Restarts())
    with pytest.raises(ValueError, match=message):
        hosts.check(Job(PROGRAM, size=2), Restarts(1))


ADDRESSES = ("train-0.peers:2222", "train-1.peers:2222")


def specs_of(pod):
    pods = Pods(Cluster(workers=ADDRESSES, task=Task("worker", pod)))
    return plan_in_pod(Job(("/bin/prog",), size=2), pods)


def test_pods_have_one_job_and_each_its_ranks():
    specs = [*specs_of(0), *specs_of(1)]

    assert [spec.rank for spec in specs] == [0, 1, 2, 3]
    assert [spec.tag for spec in specs] == ["0", "1", "2", "3"]
    clusters = [detect(spec.env) for spec in specs]
    assert [(one.rank, one.local_rank, one.local_size) for one in clusters] == [
        *((0, 0, 2), (1, 1, 2)),
        *((2, 0, 2), (3, 1, 2)),
    ]
    places = [f"train-{pod}.peers:{port}" for pod in (0, 1) for port in (2222, 2223)]
    assert {one.workers for one in clusters} == {tuple(places)}
    assert len({one.run_id for one in clusters}) == 1


@pytest.mark.parametrize(
    ("job", "restarts", "message"),
    [
        (
            Job(("/bin/prog",), workers=2, ps=1),
            Restarts(),
            "^Each pod of a Kubernetes job starts ranks that are all alike, joined by "
            "TensorFlow. Received: parameter servers. Give -np, or unset",
        ),
        (
            Job(("/bin/prog",), size=2, collective="horovod"),
            Restarts(),
            "Received: --collective horovod. Give -np",
        ),
        (
            Job(("/bin/prog",), size=2),
            Restarts(3),
            "^--max-restarts starts all processes again, and a pod cannot start "
            "those of other pods. Received: --max-restarts 3. Let Kubernetes",
        ),
    ],
)
def test_what_no_pod_can_do_alone_is_refused(job, restarts, message):
    pods = Pods(Cluster(workers=ADDRESSES))

    pods.check(Job(("/bin/prog",), size=2), Restarts())
    with pytest.raises(ValueError, match=message):
        pods.check(job, restarts)


# Addresses of examples, which no machine has.
A, B = "203.0.113.1", "203.0.113.2"


def job_of(size=3):
    return Job(PROGRAM, size=size)


@pytest.fixture
def hosts(ssh):
    return Hosts((HostSlots(A, 2), HostSlots(B, 1)), ssh=ssh, start_timeout_seconds=300)


@pytest.mark.parametrize("collective", ["mpi", "horovod"])
def test_what_joins_processes_of_one_machine_is_refused(collective):
    job = Job(("python", "train.py"), size=3, collective=collective)

    with pytest.raises(
        ValueError,
        match=f"^--collective {collective} joins processes of this machine only. "
        "Received: the hosts a:2,b:2. Let mpirun start them: mpirun -np 3 -H a:2,b:2 "
        "python train.py; under Slurm: srun --mpi=pmix.",
    ):
        TWO.check(job, Restarts())


def test_this_machine_needs_no_connection(hosts, monkeypatch):
    monkeypatch.setattr(hosts_module, "is_this_machine", lambda host: host == A)

    with planned_on_hosts(job_of(), hosts, range(3)) as (specs, remote):
        assert set(remote) == {B}
        assert [spec.host for spec in specs] == [A, A, B]


def test_ranks_on_another_host_are_pinned_near_its_gpus(hosts, monkeypatch):
    hello = {"versions": installed_versions(), "ports": [5001, 5002], "visible": "1,0"}
    hello |= {"cores": [0, 1, 2, 3], "gpus": [[0, 1], [2, 3]], "quota": None}
    host = SimpleNamespace(hello=Future(), close=lambda: None)
    host.hello.set_result(hello)
    monkeypatch.setattr(hosts_module, "RemoteHost", lambda *args, **options: host)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    with planned_on_hosts(job_of(size=2), hosts, range(2)) as (specs, _):
        assert [spec.cores for spec in specs] == [(2, 3), (0, 1)]


def test_all_hosts_that_cannot_be_used_are_named(write_program):
    ssh = write_program("ssh", "echo ssh: no way >&2\nexit 255")
    hosts = Hosts((HostSlots(A), HostSlots(B)), ssh=ssh)

    with (
        pytest.raises(OSError, match="no way") as caught,
        planned_on_hosts(job_of(size=2), hosts, range(2)),
    ):
        pass

    first, second = str(caught.value).splitlines()
    assert first.startswith(f"The connection to {A} has ended with exit code 255.")
    assert second.startswith(f"The connection to {B} has ended with exit code 255.")


def test_other_versions_are_refused(hosts, monkeypatch):
    here = {"Python": "3.11", "tfdist": "0.0", "TensorFlow": "9.9"}
    monkeypatch.setattr(hosts_module, "installed_versions", lambda: here)

    with (
        pytest.raises(OSError, match="Other versions") as caught,
        planned_on_hosts(job_of(), hosts, range(3)),
    ):
        pass

    message = str(caught.value).splitlines()[0]
    assert message.startswith(f"Other versions are installed on {A}. Received: ")
    assert "tfdist" in message
    assert ", here 0.0; TensorFlow" in message
    assert message.endswith(
        f", here 9.9, in {sys.executable}. Make the same environment there as here."
    )


def test_a_signal_ends_the_waiting(write_program):
    ear, mouth = socket.socketpair()
    hosts = Hosts((HostSlots(A),), ssh=write_program("ssh", "exec cat >&2"))
    with ear, mouth:
        mouth.send(bytes([signal.SIGUSR2, signal.SIGTERM]))
        with (
            pytest.raises(InterruptedBy, match="^SIGTERM$"),
            planned_on_hosts(job_of(size=1), hosts, [0], ear),
        ):
            pass
