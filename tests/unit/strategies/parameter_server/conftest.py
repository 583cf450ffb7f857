"""Parameter servers in one process: its devices are all, and work is done at once.

TensorFlow's own strategy takes over the whole process; tests/distributed has that.
"""

import itertools
import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tfdist.cluster import Cluster
from tfdist.compat.keras.install import install
from tfdist.strategies.parameter_server import dispatcher, training, worker_input
from tfdist.strategies.parameter_server.job import ServerJob

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


class Coordinator:
    """Workers that do work at once, or, while a list is `waiting`, when it is awaited.

    They begin with the oldest work, or with another `position` in that list.
    """

    waiting = error = None
    position = 0

    def schedule(self, work):
        work() if self.waiting is None else self.waiting.append(work)

    def poll(self):
        """Do the next work for a chief that waits; return the error, if any."""
        if self.error is None and self.waiting:
            self.waiting.pop(self.position)()
        return self.error


def local_job(consistency="async", max_staleness=None):
    return ServerJob(
        Cluster(chief="a:1", workers=("b:1", "c:1"), ps=("d:1", "e:22")),
        consistency,
        max_staleness,
        0,
        lambda function, args=(): function(*args),
        SimpleNamespace(names=["a", "b"], silent=lambda seconds=0: {}),
        Coordinator(),
        HERE,
        HERE,
    )


class Here(threading.local):
    """The number of the worker whose thread this is."""

    worker = 0


@pytest.fixture
def here(monkeypatch):
    """Let a test's own coordinator schedule work; return whose thread each is."""
    here = Here()
    local = {
        "schedule": lambda coordinator, work: coordinator.schedule(work),
        "take_error": lambda coordinator: coordinator.poll(),
        "current_worker": lambda: here.worker,
        "_POLL_SECONDS": 0.001,
    }
    for name, value in local.items():
        monkeypatch.setattr(dispatcher, name, value)
    return here


@pytest.fixture
def make_job(here):
    """Return `local_job`, whose work is done as its `Coordinator` says."""
    install(is_alone=True)
    return local_job


@pytest.fixture
def read_here(monkeypatch):
    """Let readers of workers be in this process."""
    monkeypatch.setattr(worker_input, "WORKER", "/device:CPU:0")


@pytest.fixture
def turns(monkeypatch, read_here):
    """The workers that begin the next attempts at reading, which a test may set."""
    turns = SimpleNamespace(workers=itertools.cycle([0, 1]))
    values = {"current_worker": lambda: next(turns.workers), "REST_SECONDS": 0.0}
    for name, value in values.items():
        monkeypatch.setattr(training, name, value)
    return turns


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that lets TensorFlow find GPUs, as if it had not started."""
    context = context_module.context()
    devices = tf.config.list_physical_devices()

    def find(count):
        names = [f"/physical_device:GPU:{number}" for number in range(count)]
        found = [*devices, *(tf.config.PhysicalDevice(name, "GPU") for name in names)]
        fields = {
            "_context_handle": None,
            "_physical_devices": found,
            "_visible_device_list": found,
            "_memory_growth_map": dict.fromkeys(found[len(devices) :]),
            "_virtual_device_map": {},
        }
        for name, value in fields.items():
            monkeypatch.setattr(context, name, value)

    return find


@pytest.fixture
def job(make_job):
    return make_job()


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
