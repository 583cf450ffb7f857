from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.parameter_server import servers
from tfdist.strategies.parameter_server.servers import lost_server, naming_lost_servers

CLUSTER = Cluster(
    chief="a:1",
    workers=("b:1",),
    ps=("c:1", "d:22"),
    evaluators=("e:1",),
    task=Task("ps", 1),
)


def test_a_server_knows_the_chief_the_workers_and_the_servers(monkeypatch):
    calls = []

    def start(spec, **options):
        calls.append((spec.as_dict(), options))
        return SimpleNamespace(target="grpc://here")

    names = ("check_own_port", "start_watchdog", "wait_for_chief", "watch_chief")
    for name in names:
        monkeypatch.setattr(servers, name, lambda *args: None)
    monkeypatch.setattr(servers, "_SIGNALS", ())
    monkeypatch.setattr(tf.distribute, "Server", start)
    with pytest.raises(SystemExit) as ended:
        servers.serve(CLUSTER, 7.0)

    [(jobs, options)] = calls
    assert ended.value.code == 0
    assert jobs == {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:22"]}
    assert (options["job_name"], options["task_index"]) == ("ps", 1)
    assert options["config"].inter_op_parallelism_threads == 8


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
def test_a_lost_server_is_told_from_other_errors(error, expected):
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
