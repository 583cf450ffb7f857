"""Processes that serve as worker or ps: their ends."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.tf_config import dumps
from tfdist.launching.machine import free_ports
from tfdist.rendezvous.presence import listen, wait_for_servers

pytestmark = pytest.mark.slow

# An end is waited for longer than a start, so that what is late is named.
SECONDS, START_SECONDS = 1200, 600
SERVE = """
import sys
from tfdist.cluster import detect
from tfdist.strategies.parameter_server.servers import serve

print("not flushed yet", end="")
serve(detect(), start_timeout_seconds=float(sys.argv[1]))
print("not reached")
"""
FIT = """
import keras
import numpy as np
import tensorflow as tf

import tfdist

# As TensorFlow's guides write it.
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tfdist.strategies.ParameterServerStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)


class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 10:
            print("trains", flush=True)


x = np.zeros((32, 2))
model.fit(x, x[:, :1], batch_size=1, epochs=10**6, verbose=0, callbacks=[Tell()])
"""


class Tasks:
    """The processes of a cluster of one chief, one worker and one ps."""

    def __init__(self, stack):
        self._stack = stack
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]

    def cluster_of(self, job):
        chief, worker, ps = self._addresses
        return Cluster(chief=chief, workers=(worker,), ps=(ps,), task=Task(job, 0))

    def start(self, job, start_timeout_seconds=START_SECONDS, program=SERVE):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(start_timeout_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CONFIG": dumps(self.cluster_of(job))},
        )
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def tasks():
    with contextlib.ExitStack() as stack:
        yield Tasks(stack)


def end(process):
    """Wait for the end of a process; return its exit code, output and errors."""
    output, errors = process.communicate(timeout=SECONDS)
    return process.returncode, output, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_of_a_training_that_is_ended(tasks, number):
    jobs = ("chief", "ps", "worker")
    chief, *servers = (tasks.start(job, program=FIT) for job in jobs)
    assert chief.stdout.readline() == "trains\n", chief.stderr.read()
    chief.send_signal(number)

    code, _, errors = end(chief)
    assert code == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert [end(server)[0] for server in servers] == [0, 0]


def test_signals_end_a_server(tasks):
    ps, worker = tasks.start("ps"), tasks.start("worker")
    chief = tasks.cluster_of("chief")
    wait_for_servers(chief, SECONDS)
    # Servers whose chief does not answer end by themselves.
    with listen(chief):
        ps.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)

        assert end(ps)[:2] == (143, "not flushed yet")
        assert end(worker)[:2] == (130, "not flushed yet")


def test_a_server_whose_chief_does_not_come_ends(tasks):
    code, output, errors = end(tasks.start("ps", start_timeout_seconds=1))

    assert (code, output) == (1, "not flushed yet")
    assert (
        "TimeoutError: The chief cannot be reached after 1 s. Present: ps 0" in errors
    )
