"""What tfdist needs of TensorFlow's parameter servers is there, and does that."""

import inspect
import os
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import (
    cluster_coordinator,
)

from tfdist.compat import parameter_server as compat

OVERRIDDEN = [
    "_call_for_each_replica",
    "_create_variable",
    "_num_replicas_in_sync",
    "_replica_ctx_all_reduce",
    "_replica_ctx_update",
    "_update",
    "_use_merge_call",
]


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_strategies_override_is_there(name):
    assert hasattr(compat.ServerExtended, name)


def test_the_base_class_takes_what_we_give_it():
    assert parameters(compat.ServerExtended.__init__)[1:] == [
        "container_strategy",
        "cluster_resolver",
        "variable_partitioner",
    ]


@pytest.fixture
def closures():
    return cluster_coordinator._CoordinatedClosureQueue()


@pytest.fixture
def coordinator(closures):
    return SimpleNamespace(_cluster=SimpleNamespace(closure_queue=closures))


def test_work_is_given_to_the_cluster_as_a_function(coordinator, closures):
    calls = []
    worker = SimpleNamespace(
        worker_index=1,
        device_name="/cpu:0",
        executor=compat._executor.new_executor(enable_async=False),
    )
    waiting = threading.Thread(target=lambda: calls.append(closures.get()))
    waiting.start()
    compat.schedule(coordinator, lambda: calls.append(compat.current_worker()))
    waiting.join(20)
    calls.pop().execute_on(worker)

    assert calls == [1]
    source = inspect.getsource(tf.distribute.coordinator.ClusterCoordinator.__init__)
    assert "self._cluster = Cluster(" in source
    source = inspect.getsource(cluster_coordinator.Cluster)
    assert "self.closure_queue = _CoordinatedClosureQueue(" in source
    assert "self.closure_queue.put(closure)" in source


def test_an_error_is_taken_without_a_wait_and_once(coordinator, closures):
    """What is under way never ends here, and TensorFlow itself would wait for it."""
    error = ValueError("wrong")
    for _ in range(3):
        compat.schedule(coordinator, len)
    closures.get()
    closures.get()
    assert compat.take_error(coordinator) is None
    closures.mark_failed(error)
    compat.schedule(coordinator, max)

    assert compat.take_error(coordinator) is error
    assert compat.take_error(coordinator) is None
    assert [closures.get()._function for _ in range(2)] == [len, max]


WORKER = "from remote peer: /job:worker/replica:0/task:1"
SERVER = "GRPC error information from remote target /job:ps/replica:0/task:1"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.UnavailableError(None, None, WORKER), True),
        (tf.errors.AbortedError(None, None, WORKER), True),
        (tf.errors.CancelledError(None, None, "derived"), True),
        (tf.errors.DeadlineExceededError(None, None, "late"), True),
        (tf.errors.UnavailableError(None, None, SERVER), True),
        (tf.errors.UnavailableError(None, None, "/job:ps/replica:0/task:1"), False),
        (tf.errors.ResourceExhaustedError(None, None, WORKER), False),
        (ValueError(WORKER), False),
    ],
)
def test_what_tensorflow_may_do_again_is_told_from_errors(error, expected):
    assert compat.may_be_retried(error) is expected


# Reading.


def test_a_tape_takes_a_value_for_a_read_of_the_variable():
    variable = tf.Variable(3.0)
    value = variable.read_value()
    with tf.GradientTape() as tape:
        read = compat.as_read(variable, value)
        square = read * read

    assert tape.watched_variables() == (variable,)
    assert float(tape.gradient(square, variable)) == 6.0


def test_a_late_value_is_what_it_is_set_to_wherever_the_function_is_called():
    late, kept = [], tf.constant(1.0)

    def compute(x):
        late.append(compat.LateValue(tf.TensorSpec([2], tf.float32)))
        return x * late[0].symbol + kept

    function = tf.function(compute, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.float32)
    )
    compat.LateValue.bind(function, late)
    variable = tf.Variable([1.0, 2.0])

    def call():
        late[0].value = variable.read_value()
        return function(tf.constant(3.0))

    caller = tf.function(call, autograph=False).get_concrete_function()
    late[0].value = tf.constant([1.0, 2.0])

    assert function(tf.constant(2.0)).numpy().tolist() == [3.0, 5.0]
    variable.assign([5.0, 6.0])
    assert caller().numpy().tolist() == [16.0, 19.0]


def test_late_values_leave_alone_what_else_is_made_at_calls():
    """TensorFlow gives lookup tables so, those of the worker."""
    late, number = [], [1.0]

    def compute():
        late.append(compat.LateValue(tf.TensorSpec([], tf.float32)))
        graph = tf.compat.v1.get_default_graph()
        of_call = graph.capture_call_time_value(
            lambda: tf.constant(number[0]), tf.TensorSpec([], tf.float32)
        )
        return late[0].symbol + of_call

    function = tf.function(compute, autograph=False).get_concrete_function()
    compat.LateValue.bind(function, late)
    late[0].value = tf.constant(10.0)
    assert float(function()) == 11.0
    number[0] = 2.0

    assert float(function()) == 12.0


# Connecting.


class Filters:
    def __init__(self):
        self.set = {}

    def set_device_filters(self, job, index, visible):
        self.set[job, index] = visible


def test_servers_see_each_other_and_workers_do_not(monkeypatch):
    calls = []
    for name in (
        "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE",
        "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY",
    ):
        monkeypatch.setenv(name, "unset")
    monkeypatch.setattr(tf.config.experimental, "ClusterDeviceFilters", Filters)
    monkeypatch.setattr(
        tf.config,
        "experimental_connect_to_cluster",
        lambda *args, **kwargs: calls.append((args, kwargs)),
    )
    monkeypatch.setattr(
        compat._context, "ensure_initialized", lambda: calls.append("started")
    )
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    compat.connect(tf.train.ClusterSpec(jobs))

    [((spec,), options), started] = calls
    assert started == "started"
    assert spec.as_dict() == jobs
    assert options.pop("cluster_device_filters").set == {
        ("worker", 0): ["/job:ps", "/job:chief"],
        ("worker", 1): ["/job:ps", "/job:chief"],
        ("ps", 0): ["/job:ps", "/job:worker", "/job:chief"],
    }
    assert options == {"job_name": "chief", "protocol": "grpc"}
    assert os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] == "False"
    assert os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] == "True"
