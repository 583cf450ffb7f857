"""Parameter servers in one process: its devices are all, and work is done at once.

TensorFlow's own strategy takes over the whole process; tests/distributed has that.
"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tfdist.cluster import Cluster
from tfdist.compat.keras import install
from tfdist.strategies.parameter_server import dispatcher
from tfdist.strategies.parameter_server.batch_codec import spec_of
from tfdist.strategies.parameter_server.keras_hooks import ServerKerasHooks
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import LONGEST_STALENESS, Update

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


class LocalExtended:
    """The part of the mechanism that any device can have."""

    chief = server_of_state = HERE

    def __init__(self, strategy):
        self.keras_hooks = ServerKerasHooks(strategy)
        self.version = tf.Variable(0, dtype=tf.int64)
        self.staleness = tf.Variable(tf.zeros([LONGEST_STALENESS + 1], tf.int64))


class LocalStrategy:
    """What steps and updates ask of a strategy."""

    workers = 2
    backup_workers = 0
    heartbeat = SimpleNamespace(names=["a", "b"], silent=lambda seconds=0: {})
    cluster = Cluster(chief="a:1", workers=("b:1", "c:1"), ps=("d:1",))

    def __init__(self, consistency="async", max_staleness=None):
        self.consistency = consistency
        self.max_staleness = max_staleness
        self.coordinator = SimpleNamespace(waiting=None, error=None)
        self.extended = LocalExtended(self)

    def run(self, function, args=()):
        return function(*args)


@pytest.fixture
def make_strategy(monkeypatch):
    """Return `LocalStrategy`; if `coordinator.waiting` is a list, work waits there."""

    def schedule(coordinator, work):
        work() if coordinator.waiting is None else coordinator.waiting.append(work)

    install(is_alone=True)
    monkeypatch.setattr(dispatcher, "schedule", schedule)
    monkeypatch.setattr(dispatcher, "take_error", lambda coordinator: coordinator.error)
    monkeypatch.setattr(dispatcher, "current_worker", lambda: 0)
    return LocalStrategy


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that lets TensorFlow find GPUs, as if it had not started."""
    context = context_module.context()
    devices = tf.config.list_physical_devices()

    def find(count):
        names = [f"/physical_device:GPU:{number}" for number in range(count)]
        found = [*devices, *(tf.config.PhysicalDevice(name, "GPU") for name in names)]
        monkeypatch.setattr(context, "_context_handle", None)
        monkeypatch.setattr(context, "_physical_devices", found)
        monkeypatch.setattr(context, "_visible_device_list", found)
        growing = dict.fromkeys(found[len(devices) :])
        monkeypatch.setattr(context, "_memory_growth_map", growing)
        monkeypatch.setattr(context, "_virtual_device_map", {})

    return find


@pytest.fixture
def strategy(make_strategy):
    return make_strategy()


@pytest.fixture
def model():
    """A small model with all of its variables."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def batch():
    """Return what gives rows for that model, from one number up to another."""
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    y = x[:, :1] - 2 * x[:, 1:2]
    return lambda start, stop: (tf.constant(x[start:stop]), tf.constant(y[start:stop]))


@pytest.fixture
def update_of(model, batch):
    """Return what traces the training of that model under a strategy."""

    def update_of(strategy):
        step = PureStep(strategy, model, model.train_step, spec_of(batch(0, 2)))
        return Update(strategy, step)

    return update_of
