from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.parameter_server import servers

CLUSTER = Cluster(
    chief="a:1",
    workers=("b:1",),
    ps=("c:1", "d:22"),
    evaluators=("e:1",),
    task=Task("ps", 1),
)


@pytest.fixture
def start(monkeypatch):
    """Return a function that serves as a task, and returns the server's arguments."""
    calls = []

    def start(spec, **options):
        calls.append((spec.as_dict(), options))
        return SimpleNamespace(target="grpc://here")

    names = ("check_own_port", "start_watchdog", "wait_for_chief", "watch_chief")
    nothing = dict.fromkeys(names, lambda *args: None)
    for name, value in (nothing | {"_SIGNALS": ()}).items():
        monkeypatch.setattr(servers, name, value)
    monkeypatch.setattr(tf.distribute, "Server", start)

    def serve(cluster):
        with pytest.raises(SystemExit) as ended:
            servers.serve(cluster, 7.0)
        assert ended.value.code == 0
        return calls.pop()

    return serve


def test_a_server_knows_the_chief_the_workers_and_the_servers(start):
    jobs, options = start(CLUSTER)

    assert jobs == {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:22"]}
    assert (options["job_name"], options["task_index"]) == ("ps", 1)
    assert options["config"].inter_op_parallelism_threads == 8


@pytest.mark.parametrize(
    ("task", "count", "visible"),
    [
        (Task("worker", 0), 1, "0"),
        # The second worker of host b, where the chief is, too.
        (Task("worker", 2), 1, "1"),
        (Task("ps", 0), 0, ""),
    ],
)
def test_each_worker_of_a_host_has_a_gpu_and_a_server_none(
    start, gpus, task, count, visible
):
    gpus(2)
    workers = ("b:2", "c:1", "b:3")
    _, options = start(Cluster(chief="b:1", workers=workers, ps=("b:4",), task=task))

    config = options["config"]
    assert config.device_count["GPU"] == count
    assert config.gpu_options.visible_device_list == visible
    assert config.gpu_options.allow_growth == bool(count)
