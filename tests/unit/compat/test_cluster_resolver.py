"""TensorFlow's strategies take the resolver, and read of it what the cluster says."""

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from tfdist.cluster.model import Cluster, Task
from tfdist.compat.cluster_resolver import cluster_resolver

JOBS = {
    "chief": "a:1",
    "workers": ("b:1", "c:1"),
    "ps": ("d:1",),
    "evaluators": ("e:1",),
}


@pytest.mark.parametrize(
    "task", [Task("chief", 0), Task("worker", 1), Task("ps", 0), Task("evaluator", 0)]
)
def test_every_task_finds_itself_and_the_others(task):
    cluster = Cluster(**JOBS, task=task)
    resolver = cluster_resolver(cluster)

    assert isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver)
    assert (resolver.task_type, resolver.task_id) == (task.type, task.index)
    assert resolver.rpc_layer == "grpc"
    assert resolver.master(task.type, task.index) == f"grpc://{cluster.address}"
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["a:1"],
        "worker": ["b:1", "c:1"],
        "ps": ["d:1"],
        "evaluator": ["e:1"],
    }


def test_an_evaluator_that_nobody_lists_is_a_task_all_the_same():
    cluster = Cluster(workers=("a:1", "b:1"), task=Task("evaluator", 0))
    resolver = cluster_resolver(cluster)

    assert (resolver.task_type, resolver.task_id) == ("evaluator", 0)
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"]}


def test_a_process_alone_has_no_addresses():
    resolver = cluster_resolver(Cluster())

    assert resolver.cluster_spec().as_dict() == {}
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)


def test_the_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(context, "num_gpus", lambda: 2)

    assert cluster_resolver(Cluster()).num_accelerators() == {"GPU": 2}
    assert cluster_resolver(Cluster()).num_accelerators("worker", 0) == {"GPU": 2}


def test_tensorflow_asks_the_resolver_for_the_gpus():
    strategy = collective_all_reduce_strategy.CollectiveAllReduceExtended
    source = inspect.getsource(strategy._initialize_local_devices)

    assert 'cluster_resolver.num_accelerators().get("GPU", 0)' in source
    simple = tf.distribute.cluster_resolver.SimpleClusterResolver
    assert simple(tf.train.ClusterSpec({})).num_accelerators() == {}
