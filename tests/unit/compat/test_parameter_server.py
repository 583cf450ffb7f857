"""What tfdist needs of TensorFlow's parameter servers is there, and does that."""

import inspect
import logging
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from tfdist.compat import parameter_server as compat


@pytest.fixture
def closures():
    return cluster_coordinator._CoordinatedClosureQueue()


@pytest.fixture
def coordinator(closures):
    return SimpleNamespace(_cluster=SimpleNamespace(closure_queue=closures))


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


def test_a_growing_variable_has_a_shape_in_traces_and_takes_any_number_of_rows():
    variable = compat.growing_variable(tf.ones([2, 3]), [None, 3], trainable=True)
    unknown = compat.growing_variable(tf.zeros([0]), None, trainable=False)
    read = tf.function(lambda: (variable.read_value(), unknown.read_value()))

    shapes = [each.shape for each in read.get_concrete_function().outputs]
    variable.assign(tf.ones([5, 3]))

    assert shapes[0].as_list() == [None, 3]
    assert shapes[1].rank is None
    assert read()[0].shape == (5, 3)
    assert variable.trainable
    with pytest.raises(ValueError, match="compatible"):
        variable.assign(tf.ones([5, 4]))


def test_errors_that_are_raised_are_not_logged():
    source = inspect.getsource(cluster_coordinator)
    assert all(message in source for message in compat.LOGGED_ERRORS)
    records = [
        logging.LogRecord("tensorflow", logging.ERROR, "", 0, message, None, None)
        for message in (*compat.LOGGED_ERRORS, "Worker %s failed")
    ]

    compat.silence_errors()

    assert [bool(tf.get_logger().filter(each)) for each in records] == [
        False,
        False,
        True,
    ]
