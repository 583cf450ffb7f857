"""Ranks in one process, threads that talk through memory; and short trainings."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

SECONDS = 120


# For tests of several devices; modules of tests run operations when they are imported.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(2)],
)


@pytest.fixture(scope="session")
def two_cpus():
    """Return the full names of two logical devices of this process."""
    from tfdist.compat.mirrored import full_name

    assert len(tf.config.list_logical_devices("CPU")) == 2
    return [full_name("CPU:0"), full_name("CPU:1")]


@pytest.fixture(autouse=True)
def no_seed_is_left():
    """Let what a test draws not depend on the tests before it."""
    yield
    from tfdist.compat.tensorflow import global_seed

    if global_seed() is not None:
        tf.random.set_seed(None)


@pytest.fixture
def synced(monkeypatch):
    """Paths that were made sure to be on disk, each with the names beside it then."""
    synced, original = [], os.fsync

    def fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        folder = path if path.is_dir() else path.parent
        synced.append((path, sorted(os.listdir(folder))))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


@pytest.fixture
def be_one_of_two(monkeypatch):
    """Return what makes this process one of two that a launcher has started."""

    def be(rank):
        config = {"cluster": {"worker": ["a:1", "b:1"]}}
        config["task"] = {"type": "worker", "index": rank}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return be


class MeetingPoint:
    """Where the threads of all ranks exchange what they have."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=SECONDS)
        self._values = {}

    def exchange(self, rank, name, value):
        self._values[rank] = (name, value)
        self._barrier.wait()
        given = [self._values[rank] for rank in range(self.size)]
        self._barrier.wait()
        assert len({name for name, _ in given}) == 1, f"different calls: {given}"
        return [value for _, value in given]

    def abort(self):
        self._barrier.abort()


def reduce_tensors(tensors, reduction):
    """Combine one tensor of each rank."""
    if isinstance(tensors[0], tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([slices.values for slices in tensors], 0),
            tf.concat([slices.indices for slices in tensors], 0),
            tensors[0].dense_shape,
        )
    return getattr(tf, f"reduce_{reduction}")(tf.stack(tensors), 0)


class InMemoryMethods:
    """Eager tensors only; `calls` lists what was called."""

    def __init__(self, rank, meeting):
        self._rank, self._meeting = rank, meeting
        self.calls = []

    @property
    def rank(self):
        return self._rank

    @property
    def size(self):
        return self._meeting.size

    def all_reduce(self, tensors, reduction="sum", *, name):
        by_rank = self._meet(f"all_reduce {name}", list(tensors))
        return [reduce_tensors(its, reduction) for its in zip(*by_rank, strict=True)]

    def all_gather(self, tensor, *, name):
        return tf.concat(self._meet(f"all_gather {name}", tensor), 0)

    def broadcast(self, tensors, root_rank=0, *, name):
        return self._meet(f"broadcast {name}", list(tensors))[root_rank]

    def exchange(self, name, value, *, joint=True):
        return self._meet(f"exchange {name}", value)

    def barrier(self, name="barrier"):
        self._meet(f"barrier {name}", None)

    def call(self, what):
        return nullcontext()

    def _meet(self, what, value):
        self.calls.append(what)
        return self._meeting.exchange(self._rank, what, value)


def make_collective(rank, meeting):
    """Return one rank's collective; the import of TensorFlow waits until here."""
    from tfdist.collectives.base import Collective

    class InMemoryCollective(InMemoryMethods, Collective):
        pass

    return InMemoryCollective(rank, meeting)


@pytest.fixture
def fit(model):
    """Train with batches of 1, and return the history."""

    def fit(*callbacks, steps=4, **options):
        x = np.ones((steps, 1), "float32")
        options = {"verbose": 0, "batch_size": 1} | options
        return model.fit(x, x, callbacks=list(callbacks), **options).history

    return fit


@pytest.fixture
def rates():
    """A callback that records the learning rate of each step; put it last."""
    import keras

    class Recorder(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.values = []

        def on_train_batch_begin(self, batch, logs=None):
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.values.append(round(rate, 6))

    return Recorder()


@pytest.fixture
def on_ranks():
    """Return a function that calls another one on several ranks at a time.

    `on_ranks(size, function)` calls `function(collective)` in a thread for each rank,
    and returns the results by rank; the first exception is raised here.
    """

    def call(size, function):
        meeting = MeetingPoint(size)

        def call_one(rank):
            try:
                return function(make_collective(rank, meeting))
            except threading.BrokenBarrierError:
                return None
            except BaseException:
                meeting.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(call_one, range(size)))

    return call
