import logging
import re
import socket
import threading
from contextlib import ExitStack

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.launching.machine import free_ports
from tfdist.rendezvous import presence
from tfdist.rendezvous.presence import (
    Absence,
    wait_for_chief,
    wait_for_servers,
    watch_chief,
)

SECONDS = 120
REFUSED = ConnectionRefusedError("refused")
SILENT = TimeoutError("timed out")


def make_cluster(task=("chief", 0), workers=2):
    """A chief, workers and one ps, at free ports of this host."""
    chief, ps, *others = (f"127.0.0.1:{port}" for port in free_ports(2 + workers))
    return Cluster(chief=chief, ps=(ps,), workers=tuple(others), task=Task(*task))


def listen(address):
    host, port = address.split(":")
    return socket.create_server((host, int(port)))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(presence, "PROBE_SECONDS", 0.01)


@pytest.fixture
def probes(monkeypatch):
    """Call functions one by one after each probe; return the probed addresses."""
    original, probed = presence._probe, []

    def start(*actions):
        left = list(actions)

        def probe(address):
            error = original(address)
            probed.append(address)
            if left:
                left.pop(0)()
            return error

        monkeypatch.setattr(presence, "_probe", probe)
        return probed

    return start


@pytest.mark.parametrize("is_there", [True, False])
def test_a_missing_server_is_named(is_there):
    cluster = make_cluster()
    with ExitStack() as stack:
        if is_there:
            stack.enter_context(listen(cluster.workers[1]))
            stack.enter_context(listen(cluster.ps[0]))
        count, present, missing = 0, "none", r".* refused; .* refused; ps 0 .*"
        if is_there:
            count, missing = 2, ".*"
            present = rf"worker 1 \({cluster.workers[1]}\); ps 0 \({cluster.ps[0]}\)"

        with pytest.raises(
            TimeoutError,
            match=rf"Only {count} of 3 workers and parameter servers can be reached "
            rf"after 0\.2 s\. Present: {present}\. Missing: worker 0 "
            rf"\({cluster.workers[0]}\): {missing}refused\. Check that each of the "
            "missing was started, with the same cluster and its own task, and that "
            rf"its address can be reached from {re.escape(socket.gethostname())}\.",
        ):
            wait_for_servers(cluster, 0.2)


def test_who_waits_long_is_told_for_whom(monkeypatch, caplog, probes, is_late):
    monkeypatch.setattr(presence, "_FIRST_NOTICE_SECONDS", 0.0)
    probed = probes()
    is_late(lambda: len(probed) > 5)
    cluster = make_cluster(workers=1)
    with (
        listen(cluster.ps[0]),
        caplog.at_level(logging.WARNING),
        pytest.raises(TimeoutError),
    ):
        wait_for_servers(cluster, SECONDS)

    assert len(caplog.messages) == 1, "the next notice is due half a minute later"
    assert re.fullmatch(
        rf"tfdist roll-call: waiting for worker 0 \({cluster.workers[0]}\): "
        r".*refused\.",
        caplog.messages[0],
    )


def test_a_missing_chief_is_named():
    cluster = make_cluster(("ps", 0))

    with pytest.raises(
        TimeoutError,
        match=r"The chief cannot be reached after 0\.1 s\. Present: ps 0 "
        rf"\({cluster.ps[0]}\); of the others nothing is known\. Missing: chief 0 "
        rf"\({cluster.chief}\): .*refused\. Check that each of the missing was "
        "started, with the same cluster and its own task, and that its address can "
        "be reached from "
        rf"{re.escape(socket.gethostname())}\.",
    ):
        wait_for_chief(cluster, 0.1)


def test_a_chief_that_has_left_is_noticed(probes):
    cluster = make_cluster(("worker", 0))
    with listen(cluster.chief) as chief:
        probed = probes(lambda: None, lambda: None, chief.close)

        watch_chief(cluster)

    assert len(probed) == 3 + presence.REFUSALS


def test_a_chief_that_hangs_is_waited_for(probes):
    """It accepts no connection, which the system does for it."""
    cluster = make_cluster(("worker", 0))
    with listen(cluster.chief) as chief:
        watch = threading.Thread(target=watch_chief, args=(cluster,), daemon=True)
        enough = threading.Event()
        probes(*[lambda: None] * 20, enough.set)
        watch.start()
        assert enough.wait(SECONDS)
        assert watch.is_alive()
    assert chief.fileno() == -1
    watch.join(SECONDS)

    assert not watch.is_alive()


def test_a_port_that_is_connected_with_itself_is_free(monkeypatch):
    def connect(place, timeout):
        connection = socket.socket()
        connection.bind(place)
        connection.connect(place)
        return connection

    monkeypatch.setattr(socket, "create_connection", connect)

    with pytest.raises(TimeoutError, match="The chief cannot be reached"):
        wait_for_chief(make_cluster(("ps", 0)), 0.1)


@pytest.mark.parametrize(
    ("errors", "final"),
    [
        ([REFUSED] * 4, True),
        ([REFUSED] * 3 + [None] + [REFUSED] * 3, False),
        ([REFUSED] * 3 + [SILENT] + [REFUSED] * 3, False),
        ([SILENT] * 61, True),
        ([SILENT] * 59 + [REFUSED, REFUSED], True),
        ([SILENT] * 60 + [None] + [SILENT] * 60, False),
    ],
)
def test_an_absence_is_final_after_refusals_or_a_long_silence(errors, final):
    absence = Absence()

    told = [absence.is_final(error, 100.0 + now) for now, error in enumerate(errors)]

    assert told == [False] * (len(errors) - 1) + [final]
