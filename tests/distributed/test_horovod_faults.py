"""No silent hang on Horovod: what the ranks say when one of them is gone."""

import os
import re
import signal
import sys

import pytest

import tfdist

pytestmark = pytest.mark.requires("horovodrun")
SECONDS = 240


def train_with_wrapped_optimizer(mistake):
    import keras
    import numpy as np

    import tfdist.horovod as hvd

    hvd.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    fit(model, np, mistake)


def train_under_strategy(mistake):
    import keras
    import numpy as np

    strategy = tfdist.strategies.HorovodStrategy(timeout_seconds=8)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model, np, mistake)


def fit(model, np, mistake):
    """Train for ever, and let rank 1 go in the second epoch."""
    import keras

    class Go(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if tfdist.rank() == 1 and self.params["epochs"] == 2 and batch == 3:
                mistake()

    rows = np.ones((400, 4)), np.ones((400, 1))
    model.fit(*rows, batch_size=4, epochs=1, verbose=0)
    model.fit(*rows, batch_size=4, epochs=2, verbose=0, callbacks=[Go()])


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise ValueError("no such row")


TRAININGS = {
    "optimizer": train_with_wrapped_optimizer,
    "strategy": train_under_strategy,
}
MISTAKES = {"kill": kill, "fail": fail}


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("kill", r"rank 1 \(process \d+ on .*\) is gone: its connection closed"),
        (
            "fail",
            r"rank 1 \(process \d+ on .*\) has ended with ValueError: no such row",
        ),
    ],
)
def test_a_rank_that_goes_is_named_by_the_other(training, mistake, words):
    result = tfdist.testing.cluster(
        __file__,
        args=(training, mistake),
        collective="horovod",
        check=False,
        timeout_seconds=SECONDS,
    )

    assert all(code != 0 for code in result.exit_codes)
    assert re.search(words, result.logs[0]), result.logs[0]


if __name__ == "__main__":
    # An uncaught error is part of what is tested, so this is a script too.
    TRAININGS[sys.argv[1]](MISTAKES[sys.argv[2]])
