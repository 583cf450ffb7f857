"""Wrong arguments; tests/distributed has the rest."""

import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.compat import tensorflow as compat
from tfdist.strategies.parameter_server import strategy
from tfdist.strategies.parameter_server.strategy import (
    ParameterServerStrategy,
    check_backup_workers,
    check_cluster,
    check_consistency,
)

JOBS = {"chief": "a:1", "workers": ("b:1",), "ps": ("c:1",)}


@pytest.mark.parametrize(
    ("jobs", "task", "message"),
    [
        (
            {"workers": ("b:1",)},
            "worker",
            r"Parameter servers need a chief, workers and ps\. Received: a cluster "
            r"without chief and ps: .* Start the program with `tfdist run --workers 2",
        ),
        ({"chief": "a:1", "workers": ("b:1",)}, "worker", "cluster without ps: "),
        (
            {**JOBS, "evaluators": ("e:1",)},
            "evaluator",
            r"ParameterServerStrategy is for the chief, workers and ps\. Received: "
            r"the task evaluator 0\. Let an evaluator load what the chief has saved",
        ),
    ],
)
def test_a_cluster_without_one_of_the_roles_is_refused(jobs, task, message):
    with pytest.raises(ValueError, match=message):
        check_cluster(Cluster(**jobs, task=Task(task, 0)))


@pytest.fixture
def unstarted(monkeypatch):
    """Let TensorFlow seem not to have run anything."""
    monkeypatch.setattr(compat, "has_started", lambda: False)


@pytest.mark.usefixtures("unstarted")
def test_the_chief_leaves_the_gpus_to_the_workers(gpus, monkeypatch):
    gpus(2)

    def check(cluster):
        raise TimeoutError(str(tf.config.get_visible_devices("GPU")))

    # It comes next.
    monkeypatch.setattr(strategy, "check_own_port", check)
    with pytest.raises(TimeoutError, match=r"^\[\]$"):
        ParameterServerStrategy(Cluster(**JOBS, task=Task("chief", 0)))


@pytest.mark.usefixtures("unstarted")
def test_a_resolver_of_tensorflow_is_a_cluster():
    spec = tf.train.ClusterSpec({"worker": ["a:1"], "chief": ["c:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0
    )
    with pytest.raises(ValueError, match=r"without ps: .*'chief': \('c:1',\)"):
        ParameterServerStrategy(resolver)
    message = "^The cluster must be a Cluster or a resolver .* Received: 'sync'. Leave"
    with pytest.raises(TypeError, match=message):
        ParameterServerStrategy("sync")


def test_an_unknown_consistency_is_refused():
    with pytest.raises(
        ValueError,
        match=r"consistency must be one of async, bounded, sync\. Received: "
        r"consistency='eventual'\. Use 'async' for the highest speed, 'sync'",
    ):
        check_consistency("eventual", None)


@pytest.mark.parametrize(
    ("consistency", "max_staleness"),
    [("async", 2), ("sync", 0), ("bounded", None), ("bounded", -1), ("bounded", True)],
)
def test_a_wrong_limit_of_staleness_is_refused(consistency, max_staleness):
    with pytest.raises(
        ValueError,
        match=r"max_staleness must be a whole number of updates from 0 with "
        r"consistency='bounded', and left out otherwise\. Received: max_staleness="
        rf"{max_staleness!r} with consistency='{consistency}'\. Give the number of",
    ):
        check_consistency(consistency, max_staleness)


@pytest.mark.parametrize(
    ("backup_workers", "consistency"),
    [(-1, "sync"), (3, "sync"), (1.0, "sync"), (True, "sync"), (1, "async")],
)
def test_wrong_backup_workers_are_refused(backup_workers, consistency):
    with pytest.raises(
        ValueError,
        match=r"backup_workers must be a whole number from 0, less than there are "
        r"workers, and 0 unless consistency='sync'\. Received: backup_workers="
        rf"{backup_workers!r} with 3 workers and consistency='{consistency}'\. Give",
    ):
        check_backup_workers(backup_workers, consistency, 3)
