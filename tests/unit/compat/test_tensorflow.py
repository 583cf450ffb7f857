"""What tfdist needs of TensorFlow beyond its public names is there, and does that."""

import inspect
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib
from tensorflow.python.eager import context
from tensorflow.python.eager import context as tf_context

from tfdist.cluster.model import Cluster, Task
from tfdist.compat import tensorflow as compat
from tfdist.compat.tensorflow import cluster_resolver
from tfdist.launch.machine import free_ports

OVERRIDDEN = [
    "_broadcast_to",
    "_call_for_each_replica",
    "_create_variable",
    "_distribute_datasets_from_function",
    "_experimental_distribute_dataset",
    "_experimental_distribute_values_from_function",
    "_gather_to_implementation",
    "_in_multi_worker_mode",
    "_local_results",
    "_num_replicas_in_sync",
    "_reduce_to",
    "_replica_ctx_all_reduce",
    "_replica_ctx_update",
    "_update",
    "_update_non_slot",
    "_use_merge_call",
    "_validate_colocate_with_variable",
    "experimental_between_graph",
    "experimental_should_init",
    "non_slot_devices",
    "parameter_devices",
    "read_var",
    "should_checkpoint",
    "should_save_summary",
    "value_container",
    "worker_devices",
]


def run(program):
    """Run a program in a process whose TensorFlow has not started."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def parameters(function):
    return list(inspect.signature(function).parameters)


# What the base class leaves to the strategies.
ADDED = ["_get_local_replica_id"]


@pytest.mark.parametrize("name", [*OVERRIDDEN, *ADDED])
def test_what_our_strategy_overrides_is_still_there(name):
    from tfdist.strategies.process_replica import ProcessReplicaExtended

    default = type(tf.distribute.get_strategy().extended)
    base = default if name in ADDED else compat.StrategyExtended
    theirs = inspect.getattr_static(base, name)
    ours = inspect.getattr_static(ProcessReplicaExtended, name)

    assert isinstance(ours, property) == isinstance(theirs, property)
    if not isinstance(ours, property):
        assert len(parameters(ours)) == len(parameters(theirs))


def test_our_strategy_overrides_nothing_else():
    from tfdist.strategies.base import CollectiveExtended
    from tfdist.strategies.process_replica import ProcessReplicaExtended

    own = {
        name
        for kind in (ProcessReplicaExtended, CollectiveExtended)
        for name in vars(kind)
        if not name.startswith("__")
    } - {"joined", "keras_hooks", "step", "_gather_over_processes", "_abc_impl"}

    assert own == {*OVERRIDDEN, *ADDED}


def test_an_update_is_a_context_with_a_replica():
    with compat.UpdateContext("/cpu:0"):
        assert distribute_lib.get_update_replica_id() == "/cpu:0"
    assert distribute_lib.get_update_replica_id() is None


def test_whether_tensorflow_has_started_can_be_told():
    program = """
        import tensorflow as tf
        from tfdist.compat.tensorflow import check_not_started

        check_not_started()
        tf.constant(1)
        try:
            check_not_started()
        except RuntimeError:
            print("refused")
        """

    assert run(program) == ["refused"]


def test_a_tensorflow_that_has_started_is_refused():
    tf.constant(1)

    with pytest.raises(
        RuntimeError,
        match=r"The strategy must be made before TensorFlow runs its first operation\. "
        r"Received: a TensorFlow that has already started\. Make the strategy first",
    ):
        compat.check_not_started()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "configure_collective_ops",
            ["collective_leader", "scoped_allocator_enabled_ops", "device_filters"],
        ),
        ("enable_collective_ops", ["server_def"]),
        ("abort_collective_ops", ["code", "message"]),
        ("ensure_initialized", []),
    ],
)
def test_the_context_takes_what_we_give_it(name, wanted):
    found = parameters(getattr(tf_context.Context, name))

    assert set(wanted) <= set(found)


def test_the_collectives_start_before_anything_else_and_can_be_ended():
    """One process is enough to see that the context takes the server."""
    program = f"""
        import tensorflow as tf
        from tfdist.compat import tensorflow as compat

        device = compat.start_collectives(["127.0.0.1:{free_ports(1)[0]}"], 0)
        print(device)

        def reduce(key):
            return tf.raw_ops.CollectiveReduceV2(
                input=tf.ones([2]), group_size=1, group_key=1, instance_key=key,
                ordering_token=[], merge_op="Add", final_op="Id",
            )

        print(float(reduce(1)[0]))
        compat.abort_collectives("because-of-rank-7")
        try:
            reduce(2)
        except tf.errors.UnavailableError as error:
            print("because-of-rank-7" in str(error))
        """

    assert run(program) == [
        "/job:worker/replica:0/task:0/device:CPU:0",
        "1.0",
        "True",
    ]


def test_a_server_is_described_as_ever():
    fields = tensorflow_server_pb2.ServerDef.DESCRIPTOR.fields_by_name

    assert {"cluster", "job_name", "task_index", "protocol"} <= set(fields)
    assert "default_session_config" in fields


def test_this_process_has_a_device_with_a_full_name():
    assert compat.local_device().startswith("/job:localhost/replica:0/task:0/device:")


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (
            tf.raw_ops.CollectiveReduceV2,
            "input group_size group_key instance_key ordering_token merge_op final_op",
        ),
        (
            tf.raw_ops.CollectiveGatherV2,
            "input group_size group_key instance_key ordering_token",
        ),
        (tf.raw_ops.CollectiveBcastSendV2, "input group_size group_key instance_key"),
        (
            tf.raw_ops.CollectiveBcastRecvV2,
            "group_size group_key instance_key shape T",
        ),
    ],
)
def test_the_collective_ops_take_what_we_give_them(op, wanted):
    assert set(wanted.split()) <= set(parameters(op))


def reduces_without_order(is_independent):
    """Return how many of two collectives wait for the one before."""

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
    return sum(not op.control_inputs for op in ops)


def test_a_graph_orders_collectives_unless_it_is_told_not_to():
    assert reduces_without_order(is_independent=False) == 1
    assert reduces_without_order(is_independent=True) == 2


def test_outside_of_functions_there_is_no_order_to_lift():
    with tf.Graph().as_default():
        op = tf.constant(1).op

        assert op.graph.experimental_acd_manager is None
        assert compat.run_independently(op) is None


def runs_though_nobody_needs_it(must_run):
    """Say whether a graph runs an operation that has neither effects nor readers."""
    calls = []

    @tf.function
    def step(x):
        unread = tf.numpy_function(
            lambda x: calls.append(1) or x, [x], tf.float32, stateful=False
        )
        if must_run:
            compat.run_always(unread.op)
        return x

    step(tf.constant(1.0))
    return bool(calls)


def test_a_graph_leaves_out_what_nobody_needs_unless_it_is_told_not_to():
    assert not runs_though_nobody_needs_it(must_run=False)
    assert runs_though_nobody_needs_it(must_run=True)


def test_what_must_run_waits_for_nothing_else():
    """Otherwise collectives would run one after the other."""

    @tf.function
    def step(x):
        for _ in range(2):
            compat.run_always(tf.square(x).op)
        return x

    graph = step.get_concrete_function(tf.TensorSpec([2])).graph
    squares = [op for op in graph.get_operations() if op.type == "Square"]

    assert [list(op.control_inputs) for op in squares] == [[], []]


def test_outside_of_functions_nothing_is_left_out():
    with tf.Graph().as_default():
        op = tf.constant(1).op

        assert op.graph.experimental_acd_manager is None
        assert compat.run_always(op) is None


def test_a_dataset_is_sharded_by_its_policy():
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    dataset = tf.data.Dataset.range(6).with_options(options)

    parts = [compat.auto_shard(dataset, 2, rank) for rank in range(2)]

    assert [list(part.as_numpy_iterator()) for part in parts] == [[0, 2, 4], [1, 3, 5]]


def test_the_batch_size_is_known_where_there_is_one():
    dataset = tf.data.Dataset.range(10)

    assert compat.static_batch_size(dataset.batch(4)) == 4
    assert compat.static_batch_size(dataset.batch(4).prefetch(1).repeat()) == 4
    # What a function does with the rows, TensorFlow does not look at.
    assert compat.static_batch_size(dataset.batch(4).map(lambda x: x + 1)) is None
    # A scalar has no rows that could be counted.
    assert compat.static_batch_size(dataset) is None
    assert compat.static_batch_size(dataset.map(lambda x: {"x": x})) is None


def test_the_global_seed_can_be_read():
    before = compat.global_seed()
    try:
        tf.random.set_seed(7)
        assert compat.global_seed() == 7
    finally:
        tf_context.set_global_seed(before)


def test_without_a_global_seed_there_is_none():
    program = """
        from tfdist.compat.tensorflow import global_seed

        print(global_seed())
        """

    assert run(program) == ["None"]


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
