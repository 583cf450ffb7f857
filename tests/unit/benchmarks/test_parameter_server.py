"""The options of the strategy that is measured; training is for tests/distributed."""

import pytest
import tensorflow as tf

from tfdist.benchmarks import parameter_server
from tfdist.benchmarks.parameter_server import Settings, _options
from tfdist.cluster import Cluster, Task

SETTINGS = {
    "model": "dense",
    "optimizer": "sgd",
    "strategy": {"consistency": "sync"},
    "source": "chief",
    "batch_size": 4,
    "steps_per_execution": 1,
    "steps": 2,
    "repeats": 1,
}


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    cluster = Cluster(
        task=Task("chief", 0), chief="h:1", workers=("h:2",), ps=("h:3", "h:4")
    )
    monkeypatch.setattr(parameter_server, "detect", lambda: cluster)


def test_variables_are_whole_if_nothing_else_is_asked():
    options = _options(Settings(is_sharded=False, **SETTINGS))

    assert options == {"consistency": "sync"}


def test_a_large_variable_has_two_parts_for_each_server():
    options = _options(Settings(is_sharded=True, **SETTINGS))

    partitioner = options["variable_partitioner"]
    assert partitioner(tf.TensorShape([1_000_000, 64]), tf.float32) == [4, 1]
    assert options["consistency"] == "sync"
