"""No silent hang on Horovod: what the ranks say when one of them is gone."""

import os
import re
import signal
import sys
from functools import partial

import pytest

import tfdist

pytestmark = [
    pytest.mark.requires("horovodrun"),
    pytest.mark.usefixtures("settled"),
]
SECONDS = 1200


def train_until_killed():
    """Train for ever, and let rank 1 be killed in the second epoch."""
    import keras
    import numpy as np

    import tfdist.horovod as hvd

    hvd.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hvd.rank() == 1 and batch == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    rows = np.ones((400, 4)), np.ones((400, 1))
    model.fit(*rows, batch_size=4, verbose=0)
    model.fit(*rows, batch_size=4, epochs=2, verbose=0, callbacks=[Killed()])


def differ(mistake):
    """Train with the wrapped optimizer, and differ between the ranks in one thing."""
    import keras
    import numpy as np

    import tfdist.horovod as hvd
    from tfdist.liveness import lifeline

    hvd.init()
    is_first = hvd.rank() == 0
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    if mistake == "variables":
        hvd.broadcast_variables(model.weights[: 1 + hvd.rank()], root_rank=0)
    epochs, callbacks = 2, []
    if mistake in ("average", "broadcast") and is_first:
        made = {
            "average": hvd.callbacks.MetricAverageCallback,
            "broadcast": partial(hvd.callbacks.BroadcastGlobalVariablesCallback, 0),
        }
        callbacks = [made[mistake]()]
    elif mistake == "0 ends":
        lifeline._FAREWELL_SECONDS = 1.0
        epochs = 1 if is_first else 2
    elif mistake == "copied":
        model = keras.models.clone_model(model)
        model.compile("sgd", "mse")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    data = np.ones((40, 4)), np.ones((40, 1))
    model.fit(*data, batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)


APART = (
    r"RuntimeError: The ranks are in different calls: rank 0 \(.*\) is in {0}, rank 1 "
    r"\(.*\) in {1} \(joint call {2} on both\)"
)


@pytest.mark.parametrize(
    ("mistake", "waiting", "words"),
    [
        (
            "average",
            (0, 1),
            APART.format("MetricAverageCallback", "a training step", 11),
        ),
        pytest.param(
            "broadcast",
            (0, 1),
            APART.format("BroadcastGlobalVariablesCallback", "a training step", 1),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "variables",
            (0, 1),
            APART.format(
                r"a broadcast of variables \(1\)", r"a broadcast of variables \(2\)", 1
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0 ends",
            (1,),
            r"ConnectionError: rank 0 \(.*\) has ended its program",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_differ_raise_and_do_not_hang(mistake, waiting, words):
    result = tfdist.testing.cluster(
        __file__,
        args=("differ", mistake),
        collective="horovod",
        check=False,
        timeout_seconds=SECONDS,
    )

    for rank in waiting:
        assert result.exit_codes[rank] != 0
        assert re.search(words, result.logs[rank]), result.logs[rank]


def test_an_optimizer_that_is_not_distributed_is_warned_of():
    result = tfdist.testing.cluster(
        __file__, args=("differ", "copied"), collective="horovod"
    )

    for log in result.logs:
        assert "UserWarning: Each rank trains a model of its own." in log
        assert "load a saved model by hvd.load_model" in log


def test_a_rank_that_is_killed_is_named_by_the_other():
    result = tfdist.testing.cluster(
        __file__,
        args=("killed",),
        collective="horovod",
        check=False,
        timeout_seconds=SECONDS,
    )

    assert all(code != 0 for code in result.exit_codes)
    words = r"rank 1 \(process \d+ on .*\) is gone: its connection closed"
    assert re.search(words, result.logs[0]), result.logs[0]


if __name__ == "__main__":
    # An uncaught error is part of what is tested, so this is a script too.
    if sys.argv[1] == "differ":
        differ(sys.argv[2])
    else:
        train_until_killed()
