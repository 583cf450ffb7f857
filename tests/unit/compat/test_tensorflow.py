"""What tfdist needs of TensorFlow beyond its public names is there, and does that."""

import inspect
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from tfdist.cluster.model import Cluster, Task
from tfdist.compat import tensorflow as compat
from tfdist.compat.mirrored import MirroredExtended
from tfdist.compat.tensorflow import cluster_resolver
from tfdist.launching.machine import free_ports
from tfdist.strategies.base import CollectiveExtended
from tfdist.strategies.mirrored.extended import (
    CentralStorageExtended,
    MirroredReplicasExtended,
)
from tfdist.strategies.process_replica import ProcessReplicaExtended


def run(program):
    """Run a program in a process whose TensorFlow has not started."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# The additions of tfdist to the interface of TensorFlow.
OURS = {
    *("joined", "keras_hooks", "owners", "step", "_gather_over_processes"),
    *("replica_of", "standing_in", "_number_here", "_abc_impl"),
}
# The classes of tfdist, and what each of them changes.
CHANGED = {
    ProcessReplicaExtended: compat.StrategyExtended,
    CollectiveExtended: compat.StrategyExtended,
    MirroredReplicasExtended: MirroredExtended,
    CentralStorageExtended: MirroredExtended,
}
OVERRIDDEN = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in CHANGED
    for name in sorted({*vars(kind)} - OURS)
    if not name.startswith("__")
]


@pytest.mark.parametrize(("kind", "name"), OVERRIDDEN)
def test_what_our_strategies_override_is_still_there(kind, name):
    base = CHANGED[kind]
    if name == "_get_local_replica_id":  # The base class leaves it to strategies.
        base = type(tf.distribute.get_strategy().extended)
    ours, theirs = (inspect.getattr_static(each, name) for each in (kind, base))

    assert isinstance(ours, property) == isinstance(theirs, property)
    if not isinstance(ours, property):
        ours, theirs = ([*inspect.signature(one).parameters] for one in (ours, theirs))
        assert len(ours) == len(theirs)
        # TensorFlow passes this one's by its place.
        assert ours == theirs or name == "_local_results"


def test_the_collectives_start_before_anything_else_and_can_be_ended(forked):
    """One process is enough to see that the context takes the server."""
    program = f"""
        import tensorflow as tf
        from tfdist.compat import tensorflow as compat

        compat.check_not_started()
        print(compat.global_seed())
        compat.start_collectives(["127.0.0.1:{free_ports(1)[0]}"], 0)
        print(compat.local_devices()[0])

        def reduce(key):
            return tf.raw_ops.CollectiveReduceV2(
                input=tf.ones([2]), group_size=1, group_key=1, instance_key=key,
                ordering_token=[], merge_op="Add", final_op="Id",
            )

        print(float(reduce(1)[0]))
        compat.abort_collectives("because-of\\n\\n  rank-7")
        try:
            reduce(2)
        except tf.errors.UnavailableError as error:
            print("because-of rank-7" in str(error))
        compat.restart_collectives()
        print(float(reduce(3)[0]))
        """

    assert run(program) == [
        "None",
        "/job:worker/replica:0/task:0/device:CPU:0",
        "1.0",
        "True",
        "1.0",
    ]


@pytest.mark.parametrize(("is_independent", "without_order"), [(False, 1), (True, 2)])
def test_a_graph_orders_collectives_unless_it_is_told_not_to(
    is_independent, without_order
):
    def step(x):
        for key in (1, 2):
            result = tf.raw_ops.CollectiveReduceV2(
                input=x,
                group_size=1,
                group_key=1,
                instance_key=key,
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
            )
            if is_independent:
                compat.run_independently(result.op)
        return x

    graph = tf.function(step).get_concrete_function(tf.TensorSpec([2])).graph
    ops = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    assert len(ops) == 2
    assert sum(not op.control_inputs for op in ops) == without_order


@pytest.mark.parametrize("must_run", [False, True])
def test_a_graph_leaves_out_what_nobody_needs_unless_it_is_told_not_to(must_run):
    calls = []

    @tf.function
    def step(x):
        unread = tf.numpy_function(
            lambda x: calls.append(1) or x, [x], tf.float32, stateful=False
        )
        if must_run:
            compat.run_always(unread.op)
        return tf.exp(tf.sin(tf.cos(x)))

    # Grappler inlines the step, and looks for what it may leave out.
    tf.function(lambda x: step(x) + 1.0)(tf.constant(1.0))
    assert bool(calls) == must_run


def test_the_batch_size_is_known_where_there_is_one():
    dataset = tf.data.Dataset.range(10)

    assert compat.static_batch_size(dataset.batch(4)) == 4
    assert compat.static_batch_size(dataset.batch(4).prefetch(1).repeat()) == 4
    # What a function does with the rows, TensorFlow does not look at.
    assert compat.static_batch_size(dataset.batch(4).map(lambda x: x + 1)) is None
    # A scalar has no rows that could be counted.
    assert compat.static_batch_size(dataset) is None
    assert compat.static_batch_size(dataset.map(lambda x: {"x": x})) is None


def test_a_program_may_ask_for_deterministic_operations():
    assert not compat.is_deterministic()
    try:
        tf.config.experimental.enable_op_determinism()
        assert compat.is_deterministic()
    finally:
        config.disable_op_determinism()


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


def test_the_gpus_are_counted():
    count = {"GPU": len(tf.config.list_physical_devices("GPU"))}

    assert cluster_resolver(Cluster()).num_accelerators() == count
    assert cluster_resolver(Cluster()).num_accelerators("worker", 0) == count
