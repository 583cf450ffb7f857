"""What is refused before TensorFlow is taken over; tests/distributed has the rest."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.parameter_server import strategy as module
from tfdist.strategies.parameter_server.placement import Placement
from tfdist.strategies.parameter_server.strategy import ParameterServerStrategy

JOBS = {"chief": "a:1", "workers": ("b:1",), "ps": ("c:1",)}


@pytest.fixture
def fresh(monkeypatch):
    """Let TensorFlow be as at the start of a program."""
    monkeypatch.setattr(module.compat, "check_not_started", lambda: None)


def test_it_is_a_strategy_of_tensorflow_s():
    assert issubclass(ParameterServerStrategy, tf.distribute.Strategy)


def test_arguments_are_checked_first():
    with pytest.raises(ValueError, match="max_staleness is for consistency='bounded'"):
        ParameterServerStrategy(max_staleness=2)


def test_a_partitioner_must_be_callable():
    with pytest.raises(ValueError, match="variable_partitioner must be a function"):
        ParameterServerStrategy(variable_partitioner=2)


def test_a_process_that_has_begun_with_tensorflow_is_refused():
    assert float(tf.constant(1.0)) == 1.0

    with pytest.raises(RuntimeError, match="Received"):
        ParameterServerStrategy(Cluster(**JOBS, task=Task("chief", 0)))


@pytest.mark.usefixtures("fresh")
def test_an_environment_without_servers_is_refused():
    with pytest.raises(ValueError, match="Parameter servers need a chief, workers and"):
        ParameterServerStrategy()


@pytest.mark.usefixtures("fresh")
def test_more_backup_workers_than_can_be_spared_are_refused():
    with pytest.raises(ValueError, match="backup_workers=1 with 1 workers"):
        ParameterServerStrategy(
            Cluster(**JOBS, task=Task("chief", 0)), "sync", backup_workers=1
        )


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
