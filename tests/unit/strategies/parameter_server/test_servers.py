import logging
import os
import signal
import socket
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.launch.machine import free_ports
from tfdist.strategies.parameter_server import servers
from tfdist.strategies.parameter_server.servers import lost_server, naming_lost_servers

SECONDS = 20
ADDRESS = "127.0.0.1:{}"


@pytest.fixture
def cluster():
    chief, worker, ps, evaluator = map(ADDRESS.format, free_ports(4))
    return Cluster(
        chief=chief,
        workers=(worker,),
        ps=(ps,),
        evaluators=(evaluator,),
        task=Task("ps", 0),
    )


@pytest.fixture
def calls(monkeypatch):
    """What `serve` asks of others, in order, in place of it being done."""
    calls = []

    def note(name):
        return lambda *arguments: calls.append((name, *arguments))

    def start(spec, **options):
        calls.append(("Server", spec.as_dict(), options))
        return SimpleNamespace(target="grpc://here")

    names = ("check_own_port", "start_watchdog", "wait_for_chief", "watch_chief")
    for name in names:
        monkeypatch.setattr(servers, name, note(name))
    monkeypatch.setattr(tf.distribute, "Server", start)
    return calls


@pytest.fixture
def handlers():
    """Put the handlers of this process back."""
    before = {number: signal.getsignal(number) for number in servers._SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_server_serves_until_the_chief_leaves(cluster, calls, caplog):
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        servers.serve(cluster, 7.0)

    jobs = {
        "chief": [cluster.chief],
        "worker": [*cluster.workers],
        "ps": [*cluster.ps],
    }
    options = {"job_name": "ps", "task_index": 0, "protocol": "grpc", "start": True}
    threads = calls[3][2].pop("config").inter_op_parallelism_threads
    assert threads == 8
    assert ended.value.code == 0
    assert calls == [
        ("check_own_port", cluster),
        ("start_watchdog", f"ps 0 ({cluster.address})", 30.0),
        ("wait_for_chief", cluster, 7.0),
        ("Server", jobs, options),
        ("watch_chief", cluster),
    ]
    assert "The chief has left: the server at grpc://here ends." in caplog.text


@pytest.mark.usefixtures("handlers", "calls")
@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_a_server(cluster, monkeypatch, number, code):
    def interrupt(cluster):
        os.kill(os.getpid(), getattr(signal, number))

    monkeypatch.setattr(servers, "watch_chief", interrupt)

    with pytest.raises(SystemExit) as ended:
        servers.serve(cluster, SECONDS)

    assert ended.value.code == code


def test_a_port_that_was_taken_after_the_check_is_named(cluster):
    host, port = cluster.address.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(
            OSError,
            match=r"TensorFlow cannot start its server: Could not start gRPC server\. "
            rf"Received: ps 0 \({cluster.address}\)\. See the reason in "
            "TensorFlow's log "
            "above; if another process has taken the port, stop it or give "
            "this task another one, on every process",
        ),
    ):
        servers._start(cluster)


CLUSTER = Cluster(chief="a:1", workers=("b:1",), ps=("c:1", "d:22"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:1"),
            "ps 1 (d:22)",
        ),
        (tf.errors.AbortedError(None, None, "cannot reach c:1"), "ps 0 (c:1)"),
        (tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:0"), None),
        (tf.errors.InvalidArgumentError(None, None, "/job:ps/replica:0/task:1"), None),
        (ValueError("/job:ps/replica:0/task:1"), None),
    ],
)
def test_the_loss_of_a_server_is_told_from_other_errors(error, expected):
    assert lost_server(error, CLUSTER) == expected


def test_a_lost_server_is_named():
    calls = []
    error = tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:1")
    with (
        pytest.raises(
            ConnectionError,
            match=r"ps 1 \(d:22\) is lost, and the variables that it held\. Received: "
            r"UnavailableError from TensorFlow\. Start the job again; "
            r"keras\.callbacks\.BackupAndRestore continues",
        ) as raised,
        naming_lost_servers(CLUSTER, lambda: calls.append("abandoned")),
    ):
        raise error

    assert raised.value.__cause__ is error
    assert calls == ["abandoned"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError, ["abandoned"]),
        (KeyboardInterrupt, ["abandoned"]),
        (StopIteration, []),
    ],
)
def test_other_errors_stay_what_they_are(error, expected):
    calls = []
    with (
        pytest.raises(error),
        naming_lost_servers(CLUSTER, lambda: calls.append("abandoned")),
    ):
        raise error

    assert calls == expected
