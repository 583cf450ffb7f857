"""`Verdict` names the slow rank and the cause, from the times that graphs record."""

import pytest

import tfdist

STEPS = 25
SLEEP_SECONDS = 0.04


def train_with_a_slow_rank():
    """Train twice: rank 1 is slow in its input, then in a callback."""
    import contextlib
    import io
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tfdist.strategies.AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    slow = {"input": False, "callback": False}

    def rows():
        for _ in range(STEPS):
            if slow["input"] and tfdist.rank() == 1:
                time.sleep(SLEEP_SECONDS)
            yield np.ones((4, 4)), np.ones((4, 1))

    class Sleep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if slow["callback"] and tfdist.rank() == 1:
                time.sleep(SLEEP_SECONDS)

    signature = tf.TensorSpec((4, 4)), tf.TensorSpec((4, 1))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    verdict = tfdist.callbacks.Verdict()
    printed = {}
    for cause in slow:
        slow.update(input=False, callback=False)
        slow[cause] = True
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            model.fit(data, epochs=2, verbose=0, callbacks=[verdict, Sleep()])
        printed[cause] = output.getvalue().splitlines()
    return printed


@pytest.mark.parametrize(
    "collective", ["tensorflow", pytest.param("mpi", marks=pytest.mark.slow)]
)
def test_the_slow_rank_and_its_cause_are_named(collective):
    chief, other = tfdist.testing.cluster(
        train_with_a_slow_rank, collective=collective
    ).values

    assert other == {"input": [], "callback": []}
    for cause, because in (
        ("input", "because it waits for its input"),
        ("callback", "because its compute or callbacks take longer"),
    ):
        first, second = chief[cause]
        assert first.startswith("tfdist: epoch 1: a step of ")
        for line in (first, second):
            assert "on the slowest rank, 1, and " in line
            assert "; rank 1 takes " in line
            assert because in line
