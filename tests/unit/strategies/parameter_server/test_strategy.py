"""What is refused before TensorFlow is taken over; tests/distributed has the rest."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.parameter_server import strategy as module
from tfdist.strategies.parameter_server.placement import Placement
from tfdist.strategies.parameter_server.strategy import (
    ParameterServerStrategy,
    check_backup_workers,
    check_cluster,
    check_consistency,
)

JOBS = {"chief": "a:1", "workers": ("b:1",), "ps": ("c:1",)}


@pytest.fixture
def fresh(monkeypatch):
    """Let TensorFlow be as at the start of a program."""
    monkeypatch.setattr(module.compat, "check_not_started", lambda: None)


def test_a_process_that_has_begun_with_tensorflow_is_refused():
    assert float(tf.constant(1.0)) == 1.0

    with pytest.raises(RuntimeError, match="Received"):
        ParameterServerStrategy(Cluster(**JOBS, task=Task("chief", 0)))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("task", [Task("worker", 0), Task("ps", 0)])
def test_workers_and_servers_serve(monkeypatch, task):
    cluster = Cluster(**JOBS, task=task)

    def serve(served, seconds):
        assert served is cluster
        raise SystemExit(int(seconds))

    monkeypatch.setattr(module, "serve", serve)
    with pytest.raises(SystemExit, match="7"):
        ParameterServerStrategy(cluster, start_timeout_seconds=7)


@pytest.mark.usefixtures("fresh")
def test_the_chief_waits_for_everybody(monkeypatch):
    cluster, calls = Cluster(**JOBS, task=Task("chief", 0)), []

    def wait(*arguments):
        calls.append(arguments)
        raise TimeoutError

    monkeypatch.setattr(module, "check_own_port", lambda own: calls.append((own,)))
    monkeypatch.setattr(module, "wait_for_servers", wait)
    with pytest.raises(TimeoutError):
        ParameterServerStrategy(cluster, start_timeout_seconds=9.0)

    assert calls == [(cluster,), (cluster, 9.0)]


def test_the_plan_and_the_staleness_can_be_had():
    counts = np.zeros(1025, "int64")
    counts[[0, 2, 1024]] = 5, 3, 1
    placement = Placement(1)
    made = ParameterServerStrategy.__new__(ParameterServerStrategy)
    made._extended = SimpleNamespace(placement=placement, staleness=tf.Variable(counts))

    assert made.placement is placement
    assert made.staleness() == {0: 5, 2: 3, 1024: 1}


JOBS = {"chief": "a:1", "workers": ("b:1", "c:1"), "ps": ("d:1",)}


@pytest.mark.parametrize(
    ("jobs", "missing"),
    [
        ({"workers": ("b:1",)}, "chief and ps"),
        ({"chief": "a:1", "workers": ("b:1",)}, "ps"),
        ({"workers": ("b:1",), "ps": ("d:1",)}, "chief"),
    ],
)
def test_a_cluster_in_which_somebody_is_missing_is_refused(jobs, missing):
    with pytest.raises(
        ValueError,
        match=r"Parameter servers need a chief, workers and ps\. Received: a cluster "
        rf"without {missing}: .* Start the program with `tfdist run --workers 2",
    ):
        check_cluster(Cluster(**jobs, task=Task("worker", 0)))


def test_an_evaluator_is_refused():
    cluster = Cluster(**JOBS, evaluators=("e:1",), task=Task("evaluator", 0))

    with pytest.raises(
        ValueError,
        match=r"ParameterServerStrategy is for the chief, workers and ps\. Received: "
        r"the task evaluator 0\. Let an evaluator load what the chief has saved",
    ):
        check_cluster(cluster)


def test_another_consistency_is_refused():
    with pytest.raises(
        ValueError,
        match=r"consistency must be one of async, bounded, sync\. Received: "
        r"consistency='eventual'\. Use 'async' for the highest speed, 'sync'",
    ):
        check_consistency("eventual", None)


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_a_limit_that_would_be_ignored_is_refused(consistency):
    with pytest.raises(
        ValueError,
        match=r"max_staleness is for consistency='bounded'\. Received: max_staleness=2 "
        rf"with consistency='{consistency}'\. Leave it out, or use",
    ):
        check_consistency(consistency, 2)


@pytest.mark.parametrize("max_staleness", [None, -1, 1.5, True, "3"])
def test_a_bound_must_be_a_number(max_staleness):
    with pytest.raises(
        ValueError,
        match=r"consistency='bounded' needs max_staleness, a whole number of updates "
        rf"from 0\. Received: max_staleness={max_staleness!r}\. Give how many",
    ):
        check_consistency("bounded", max_staleness)


@pytest.mark.parametrize("backup_workers", [-1, 3, 1.0, True, None])
def test_somebody_must_be_left_to_work(backup_workers):
    with pytest.raises(
        ValueError,
        match=r"backup_workers must be a whole number from 0, and less than there are "
        rf"workers\. Received: backup_workers={backup_workers!r} with 3 workers\. Give "
        "how many slow workers",
    ):
        check_backup_workers(backup_workers, "sync", 3)


@pytest.mark.parametrize("consistency", ["async", "bounded"])
def test_backup_workers_where_nobody_waits_are_refused(consistency):
    with pytest.raises(
        ValueError,
        match=r"backup_workers is for consistency='sync'\. Received: backup_workers=1 "
        rf"with consistency='{consistency}', where no worker waits for another\. Leave",
    ):
        check_backup_workers(1, consistency, 3)
