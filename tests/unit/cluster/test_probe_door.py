import json
import re
import socket
import struct
import threading
import time

import pytest

from tfdist.cluster import Cluster, Task, probe_door
from tfdist.cluster.probe_door import ProbeDoor, jobs_of
from tfdist.cluster.reach import Reach, dial
from tfdist.cluster.wire import Reader, receive, send
from tfdist.launch.ports import free_ports

SECONDS = 20


@pytest.fixture
def cluster():
    first, second = free_ports(2)
    return Cluster(workers=(f"127.0.0.1:{first}", f"127.0.0.1:{second}"))


@pytest.fixture
def door(cluster):
    """Return the door of worker 0; close it."""
    door = ProbeDoor(cluster, "node1")
    yield door
    if door._listener.fileno() >= 0:
        door.close(all_reach=False)


def message(cluster, kind="probe", **others):
    return {
        "kind": kind,
        "task": "worker 1",
        "jobs": jobs_of(cluster),
        "owner": "process 7 on node2",
        "seconds_left": 0,
        "doubles": [],
        **others,
    }


def knock(cluster):
    host, port = cluster.address.split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def call(cluster, **others):
    """Call worker 0 as another task does."""
    hello = message(cluster, **others)
    return dial(cluster.address, hello, "worker 0", timeout_seconds=SECONDS)


@pytest.mark.usefixtures("door")
def test_it_answers_those_of_its_cluster(cluster):
    assert call(cluster) == Reach("reachable")


@pytest.mark.usefixtures("door")
def test_it_tells_others_that_they_have_another_cluster(cluster):
    reach = call(cluster, jobs={"worker": ["a:1"]})

    detail = "worker 0 on node1 answers, and has other addresses"
    assert reach == Reach("other cluster", detail)


def test_rows_are_gathered_and_everyone_hears_the_end(cluster, door):
    row = {"worker 0": ["timed out", "silence"]}
    with knock(cluster) as connection:
        send(connection, message(cluster, "row", row=row, doubles=["worker 1"]))
        door.wait_for_rows(["worker 1"], time.monotonic() + SECONDS)
        door.close(all_reach=True)

        assert receive(connection, Reader()) == {"kind": "end", "all_reach": True}
    assert door.rows == {"worker 1": {"worker 0": Reach("timed out", "silence")}}
    assert door.doubles == {"worker 1"}


def test_who_was_never_heard_is_waited_for_until_the_deadline(door):
    door.wait_for_rows(["worker 1"], time.monotonic() + 0.1)

    assert door.rows == {}


def test_who_was_heard_is_waited_for_as_long_as_it_said(cluster, door, monkeypatch):
    monkeypatch.setattr(probe_door, "GRACE_SECONDS", 0.0)
    call(cluster, seconds_left=SECONDS)
    waited = threading.Thread(target=door.wait_for_rows, args=(["worker 1"], 0.0))
    waited.start()
    with knock(cluster) as connection:
        send(connection, message(cluster, "row", row={}))
        waited.join(SECONDS)

    assert door.rows == {"worker 1": {}}


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_whose_time_is_over_is_given_up(cluster, door, monkeypatch, seconds):
    monkeypatch.setattr(probe_door, "GRACE_SECONDS", 0.0)
    call(cluster, seconds_left=seconds)

    door.wait_for_rows(["worker 1"], 0.0)

    assert door.rows == {}


def test_two_processes_of_one_task_are_noted(cluster, door):
    call(cluster)
    call(cluster)
    assert door.doubles == set()

    call(cluster, owner="process 8 on node3")
    assert door.doubles == {"worker 1"}


def framed(body):
    return struct.pack("!I", len(body)) + body


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        framed(b"hello"),
        framed(b"\xff\xfe"),
        framed(b"[" * 9000),
        framed(b"{}"),
        {"kind": "hello"},
        {"seconds_left": "soon"},
        {"seconds_left": 10**400},
        {"kind": "row", "row": []},
        {"kind": "row", "row": {"worker 0": 1}},
        {"kind": "row", "row": {"worker 0": [1, 2, 3]}},
        {"kind": "row", "row": {}, "jobs": {}},
    ],
)
def test_a_stranger_does_not_close_it(cluster, data):
    if isinstance(data, dict):
        data = framed(json.dumps({**message(cluster), **data}).encode())
    with knock(cluster) as stranger:
        stranger.sendall(data)
        assert stranger.recv(1) == b""

    assert call(cluster) == Reach("reachable")


def test_who_has_gone_is_not_told(cluster, door):
    with knock(cluster) as connection:
        send(connection, message(cluster, "row", row={}))
        door.wait_for_rows(["worker 1"], time.monotonic() + SECONDS)
    call(cluster)  # The door has seen by then that the other has gone.

    door.close(all_reach=True)

    assert door._listener.fileno() == -1


@pytest.mark.usefixtures("door")
def test_a_port_in_use_is_named(cluster):
    with pytest.raises(
        OSError,
        match=r"cannot listen at its own address: .*in use.*Received: worker 0 "
        rf"\({re.escape(cluster.address)}\)\. Stop what uses the port",
    ):
        ProbeDoor(cluster, "node1")


def test_the_address_is_free_again(cluster, door):
    door.close(all_reach=True)

    ProbeDoor(cluster, "node1").close(all_reach=True)

    assert jobs_of(Cluster(chief="a:1", task=Task("chief", 0))) == {"chief": ["a:1"]}
