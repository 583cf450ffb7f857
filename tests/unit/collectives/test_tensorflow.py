"""TensorFlow's collective before it connects, and flat tensors."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.collectives.tensorflow import FlatCollective, TensorFlowCollective

HOSTS = ("a:1", "b:1", "b:2", "b:3")


def test_a_tensorflow_that_has_started_is_refused():
    tf.constant(1)

    with pytest.raises(RuntimeError, match="before TensorFlow runs its first operatio"):
        TensorFlowCollective(Cluster(workers=HOSTS))


@pytest.fixture
def unstarted(monkeypatch):
    """Let TensorFlow seem not to have run anything."""
    monkeypatch.setattr("tfdist.compat.tensorflow.check_not_started", lambda: None)


def test_more_processes_on_a_host_than_gpus_are_refused(unstarted, monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["0", "1"])

    with pytest.raises(
        ValueError, match=r"Received: 3 processes and 2 GPUs\. Start at"
    ):
        TensorFlowCollective(Cluster(workers=HOSTS, task=Task("worker", 2)))


def test_each_process_on_a_host_takes_a_gpu_of_its_own(unstarted, monkeypatch):
    class Called(Exception):
        pass

    def call_roll(*args, **options):
        raise Called

    chosen = []
    monkeypatch.setattr("tfdist.collectives.tensorflow.call_roll", call_roll)
    monkeypatch.setattr(
        "tfdist.collectives.tensorflow.pin", lambda *place: chosen.append(place)
    )

    with pytest.raises(Called):
        TensorFlowCollective(Cluster(workers=HOSTS, task=Task("worker", 2)))

    assert chosen == [(1, 3)]


class Ops:
    """Moves flat tensors between two equal ranks; notes what it was given."""

    def __init__(self):
        self.given = []

    def reduce(self, flat, reduction, name):
        self.given.append((name, flat.shape.rank, int(tf.size(flat))))
        return flat * 2 if reduction in ("sum", "mean") else flat


class Moves(FlatCollective):
    rank, size = 0, 2

    def __init__(self):
        self._ops = Ops()

    exchange = barrier = call = None


Moves.__abstractmethods__ = frozenset()
MATRIX = np.arange(6.0).reshape(2, 3)


def test_tensors_of_one_type_are_one_flat_tensor_on_the_way():
    moves = Moves()

    one, other = moves.all_reduce([MATRIX, 1.0 + MATRIX[0]], name="x")

    assert moves._ops.given == [("x", 1, 9)]
    np.testing.assert_array_equal(one, MATRIX * 2)
    np.testing.assert_array_equal(other, (1.0 + MATRIX[0]) * 2)
