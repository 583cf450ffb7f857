"""Threads as tasks, each at its own address of the loopback."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster import probe as probe_module
from tfdist.cluster.probe import ReachMatrix, addresses_by_task, probe
from tfdist.cluster.probe_door import ProbeDoor
from tfdist.cluster.reach import Reach
from tfdist.launch.ports import free_ports

SECONDS = 20
# Enough for those that are there to find each other.
FEW_SECONDS = 1.5
TASKS = (
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("ps", 0),
    Task("evaluator", 0),
)


@pytest.fixture
def cluster():
    ports = free_ports(5)
    chief, first, second, ps, evaluator = (
        f"127.0.0.{host}:{port}" for host, port in enumerate(ports, 1)
    )
    return Cluster(
        chief=chief,
        workers=(first, second),
        ps=(ps,),
        evaluators=(evaluator,),
        task=TASKS[0],
    )


def run(cluster, tasks, timeout_seconds=SECONDS):
    """Probe as several tasks at a time; return what each knows."""

    def run_one(task):
        as_seen = replace(cluster, task=task)
        with probe(as_seen, timeout_seconds=timeout_seconds) as matrix:
            return matrix

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [*pool.map(run_one, tasks)]


def outcomes(matrix):
    """Return the outcomes by task and other task."""
    return {
        task: {other: reach.outcome for other, reach in row.items()}
        for task, row in matrix.rows.items()
    }


def test_all_reach_all(cluster):
    collector, *others = run(cluster, TASKS)

    names = [str(task) for task in TASKS]
    assert outcomes(collector) == {
        one: {other: "reachable" for other in names if other != one} for one in names
    }
    assert [*collector.rows] == names
    assert collector.all_reach
    for task, matrix in zip(TASKS[1:], others, strict=True):
        assert [*matrix.rows] == [str(task)]
        assert matrix.ended is matrix.all_reach is True


def test_a_task_that_was_not_started(cluster):
    collector, *others = run(cluster, TASKS[:-1], FEW_SECONDS)

    assert all(row["evaluator 0"] == "refused" for row in outcomes(collector).values())
    assert [*collector.rows] == [str(task) for task in TASKS[:-1]]
    assert collector.rows["ps 0"]["worker 1"] == Reach("reachable")
    assert not collector.all_reach
    assert [matrix.ended for matrix in others] == [False] * 3


def test_without_a_collector_everyone_has_its_own_row(cluster):
    matrices = run(cluster, TASKS[1:3], FEW_SECONDS)

    for matrix, me, other in zip(matrices, (0, 1), (1, 0), strict=True):
        row = outcomes(matrix)[f"worker {me}"]
        assert row["chief 0"] == "refused"
        assert row[f"worker {other}"] == "reachable"
        assert matrix.ended is None
        assert not matrix.all_reach


def test_a_name_that_nobody_knows(cluster, monkeypatch):
    host = cluster.ps[0].split(":")[0]
    ask = socket.getaddrinfo

    def some_known(name, *args, **kwargs):
        if name == host:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ask(name, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", some_known)
    collector, *_ = run(cluster, TASKS, FEW_SECONDS)

    unknown = Reach("name not found", "Name or service not known")
    assert collector.rows["worker 1"]["ps 0"] == unknown
    assert collector.rows["ps 0"]["worker 1"] == Reach("reachable")
    assert not collector.all_reach


def test_a_name_server_that_does_not_answer(cluster, monkeypatch):
    host = cluster.ps[0].split(":")[0]
    ask, answer = socket.getaddrinfo, threading.Event()

    def slow(name, *args, **kwargs):
        if name == host:
            answer.wait(SECONDS)
        return ask(name, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", slow)
        patched.setattr(probe_module, "_SHORTEST_TRY_SECONDS", 0.1)
        (collector,) = run(cluster, TASKS[:1], 0.2)
        answer.set()

    silence = Reach("timed out", "the name server has not answered")
    assert collector.rows["chief 0"]["ps 0"] == silence


def test_a_host_that_does_not_answer(cluster):
    host, port = cluster.ps[0].split(":")
    with socket.create_server((host, int(port))):
        collector, other = run(cluster, TASKS[:2], FEW_SECONDS)

    assert outcomes(collector)["chief 0"]["ps 0"] == "timed out"
    assert outcomes(collector)["worker 0"]["ps 0"] == "timed out"
    assert other.ended is False


def test_a_stranger_at_an_address(cluster):
    host, port = cluster.ps[0].split(":")

    def answer():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"220 mail ESMTP\r\n")
                connection.recv(1 << 16)

    with socket.create_server((host, int(port))) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        collector, *_ = run(cluster, TASKS[:2], FEW_SECONDS)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(SECONDS)

    stranger = Reach("stranger", r"it answers b'220 mail ESMTP\r\n'")
    assert collector.rows["worker 0"]["ps 0"] == stranger


def test_a_task_of_another_cluster(cluster):
    """It is told as such also if its time is over first."""
    other = replace(cluster, ps=("127.0.0.9:1",), task=TASKS[1])
    with ThreadPoolExecutor() as pool:
        strayed = pool.submit(run, other, TASKS[1:2], FEW_SECONDS)
        (collector,) = run(cluster, TASKS[:1], 2 * FEW_SECONDS)

    assert outcomes(collector)["chief 0"]["worker 0"] == "other cluster"
    assert outcomes(strayed.result()[0])["worker 0"]["chief 0"] == "other cluster"
    assert strayed.result()[0].ended is None


@pytest.mark.parametrize(
    ("tries", "told"),
    [
        (["no route", "timed out"], "no route"),
        (["name not found", "refused"], "refused"),
        (["timed out", "refused"], "refused"),
        (["stranger", "hung up"], "stranger"),
        (["refused", "other task", "timed out"], "other task"),
        (["stranger", "other cluster", "refused"], "other cluster"),
    ],
)
def test_what_tells_most_is_told(cluster, monkeypatch, tries, told):
    seen = {}

    def dial(address, hello, task, *, timeout_seconds):
        left = seen.setdefault(task, [*tries])
        return Reach(left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(probe_module, "dial", dial)
    monkeypatch.setattr(probe_module, "_RETRY_SECONDS", 0.01)
    (collector,) = run(cluster, TASKS[:1], 0.3)

    assert {*outcomes(collector)["chief 0"].values()} == {told}


def test_a_late_task_is_waited_for(cluster):
    tried = threading.Event()

    def call(address, hello, task, *, timeout_seconds):
        tried.set()
        return dial(address, hello, task, timeout_seconds=timeout_seconds)

    dial = probe_module.dial
    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor() as pool:
        patched.setattr(probe_module, "dial", call)
        early = pool.submit(run, cluster, TASKS[:-1])
        assert tried.wait(SECONDS)
        late = pool.submit(run, cluster, TASKS[-1:])

        assert [matrix.all_reach for matrix in early.result(SECONDS)] == [True] * 4
        assert late.result(SECONDS)[0].all_reach


def test_a_collector_that_goes_away(cluster, monkeypatch):
    def drop(door, connection, message):
        if message["kind"] == "row":
            raise ValueError("away")
        act(door, connection, message)

    act = ProbeDoor._act
    monkeypatch.setattr(ProbeDoor, "_act", drop)
    monkeypatch.setattr("tfdist.cluster.probe_door.GRACE_SECONDS", 0.0)
    collector, other = run(cluster, TASKS[:2], FEW_SECONDS)

    assert outcomes(other)["worker 0"]["chief 0"] == "reachable"
    assert (other.ended, other.all_reach) == (None, False)
    assert [*collector.rows] == ["chief 0"]


def test_the_others_stay_until_the_collector_has_told():
    first, second = free_ports(2)
    pair = Cluster(workers=(f"127.0.0.1:{first}", f"127.0.0.2:{second}"))
    with ThreadPoolExecutor() as pool:
        other = pool.submit(run, pair, [Task("worker", 1)])
        with probe(pair, timeout_seconds=SECONDS) as matrix:
            assert matrix.all_reach
            assert not other.done()

        assert other.result(SECONDS)[0].ended is True


def test_a_task_alone():
    cluster = Cluster(workers=(f"127.0.0.1:{free_ports(1)[0]}",))
    (matrix,) = run(cluster, [Task("worker", 0)])

    assert matrix.rows == {"worker 0": {}}
    assert matrix.all_reach


def test_two_processes_of_one_task_do_not_count_as_reached():
    cluster = Cluster(workers=("a:1",))
    matrix = ReachMatrix(
        cluster, {"worker 0": {}}, cluster.task, doubles=frozenset({"worker 0"})
    )

    assert not matrix.all_reach
    assert addresses_by_task(cluster) == {"worker 0": "a:1"}
