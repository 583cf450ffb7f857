"""Elastic jobs under Horovod's runner: a rank dies, a host is added.

The hosts are two names of this machine. Horovod never uses a host again on which a rank
has failed, so that a job needs more than one of them to go on.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]

SECONDS = 1200
RUNNER = (sys.executable, "-m", "horovod.runner.launch", "--gloo")

# What every program begins with. It writes a line at the end of each epoch.
BEGINNING = """
import json, os, signal, sys
import keras
import numpy as np
import tfdist.horovod as hvd

hvd.init()
FOLDER, HOST = sys.argv[1], os.environ["HOROVOD_HOSTNAME"]
keras.utils.set_random_seed(hvd.rank() + (1 if HOST == "localhost" else 7))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
PASSES = 1
wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES)
model.compile(wrapped, "mse")
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([lambda: on_reset()])
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def on_reset():
    # As in Horovod's examples.
    keras.backend.set_value(model.optimizer.lr, 0.01)
    note(event="reset")


def note(**values):
    values |= {"host": HOST, "rank": hvd.rank(), "size": hvd.size()}
    with open(f"{FOLDER}/log", "a") as log:
        log.write(json.dumps(values) + "\\n")


class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        after_batch(batch)

    def on_epoch_end(self, epoch, logs=None):
        steps = int(model.optimizer.iterations.numpy())
        note(epoch=state.epoch, steps=steps, weights=model.get_weights()[0].tolist())


def after_batch(batch):
    pass


callbacks = [
    hvd.callbacks.UpdateEpochStateCallback(state),
    hvd.callbacks.UpdateBatchStateCallback(state),
    hvd.callbacks.CommitStateCallback(state),
    Note(),
]


def fit(epochs):
    options = {"batch_size": 8, "verbose": 0, "callbacks": callbacks}
    model.fit(x, x[:, :1], initial_epoch=state.epoch, epochs=epochs, **options)
"""

A_RANK_DIES = """
def after_batch(batch):
    if HOST == "127.0.0.1" and state.epoch == 1 and batch == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state):
    fit(epochs=3)
    return "trained"


note(event=train(state))
"""

A_HOST_IS_ADDED = """
@hvd.elastic.run
def train(state):
    # Alone it goes on until it is told of the other.
    while hvd.size() == 1:
        fit(epochs=state.epoch + 1)
        open(f"{FOLDER}/second", "w").close()
    fit(epochs=state.epoch + 2)


train(state)
"""


def start(folder, program, hosts, *options, passes=1):
    """Run a program to the job's end and return the lines that it wrote."""
    script = folder / "hosts"
    script.write_text("#!/bin/sh\n" + hosts)
    script.chmod(0o755)
    beginning = BEGINNING.replace("PASSES = 1", f"PASSES = {passes}")
    (folder / "program.py").write_text(beginning + program)
    command = [*RUNNER, "--min-np", "1", "--host-discovery-script", str(script)]
    # Without the interface Horovod looks for one that two hosts share, through ssh.
    command += ["--network-interface", "lo", *options]
    command += [sys.executable, str(folder / "program.py"), str(folder)]
    done = subprocess.run(
        command,
        env={"OMP_NUM_THREADS": "1", "HOROVOD_START_TIMEOUT": "300", **os.environ},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@pytest.mark.parametrize("passes", [1, 2])
def test_the_others_go_on_when_a_rank_dies(tmp_path, passes):
    hosts = "echo localhost:1\necho 127.0.0.1:1\n"
    lines = start(tmp_path, A_RANK_DIES, hosts, "-np", "2", passes=passes)
    epochs = [line for line in lines if "epoch" in line]
    first, others = epochs[:2], epochs[2:]

    assert [(line["epoch"], line["steps"], line["size"]) for line in first] == [
        (1, 8, 2),
        (1, 8, 2),
    ]
    assert first[0]["weights"] == first[1]["weights"]
    # Three steps of the second epoch were committed; the third of them is done again.
    assert [(line["host"], line["epoch"], line["steps"]) for line in others] == [
        ("localhost", 2, 8 + 3 + 6),
        ("localhost", 3, 8 + 3 + 6 + 8),
    ]
    # A count of passes that the failure left behind would end all updates.
    assert others[0]["weights"] != others[1]["weights"]
    events = [(line["event"], line["size"]) for line in lines if "event" in line]
    assert events == [("reset", 1), ("trained", 1)]


def test_a_host_that_is_added_takes_part(tmp_path):
    hosts = f"echo localhost:1\n[ ! -e {tmp_path}/second ] || echo 127.0.0.1:1\n"
    lines = start(tmp_path, A_HOST_IS_ADDED, hosts, "-np", "1", "--max-np", "2")
    together = [line for line in lines if "epoch" in line and line["size"] == 2]
    alone = [line for line in lines if "epoch" in line and line["size"] == 1]

    assert len(alone) >= 1
    assert len(together) == 4
    for epoch in (together[:2], together[2:]):
        assert {line["host"] for line in epoch} == {"localhost", "127.0.0.1"}
        assert epoch[0]["steps"] == epoch[1]["steps"] > alone[-1]["steps"]
        assert epoch[0]["weights"] == epoch[1]["weights"]
    assert together[0]["epoch"] > alone[-1]["epoch"]
