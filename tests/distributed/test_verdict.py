"""`Verdict` names the slow rank and the cause, from the times that graphs record."""

import contextlib
import os

import pytest
import tensorflow as tf

import tfdist

STEPS = 15
# More than a step takes on a machine that other work slows down.
SLEEP_SECONDS = 0.1
NAMES = ("input", "compute", "communication", "waiting")


def train_with_a_slow_rank(folder):
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
    verdict = tfdist.callbacks.Verdict(log_dir=folder)
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
def test_the_slow_rank_and_its_cause_are_named(collective, tmp_path):
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        chief, other = tfdist.testing.cluster(
            train_with_a_slow_rank,
            args=(str(folder),),
            collective=collective,
            timeout_seconds=1200,
        ).values
        # Where the machine stops a process for a second, that one is slow.
        with contextlib.suppress(AssertionError):
            assert_rank_1_is_named(chief)
            assert_a_series_for_each_rank(folder)
            break

    assert other == {"input": [], "callback": []}
    assert_rank_1_is_named(chief)
    assert_a_series_for_each_rank(folder)


def assert_rank_1_is_named(printed):
    """Check what the chief prints, of each epoch three lines."""
    for cause, because in (
        ("input", "because it waits for its input"),
        ("callback", "because its compute or callbacks take longer"),
    ):
        lines = printed[cause]
        assert len(lines) == 6
        for epoch, (head, slowest, typical) in ((1, lines[:3]), (2, lines[3:])):
            assert head.startswith(f"tfdist: epoch {epoch}: rank 1 takes ")
            assert because in head
            assert slowest.startswith("  rank 1, the slowest: input ")
            assert typical.startswith("  rank 0, a typical one: input ")


def assert_a_series_for_each_rank(folder):
    """Check what TensorBoard reads: the shares of each rank, and their sum."""
    steps = {}
    for rank in (0, 1):
        shares = steps.setdefault(rank, {0: {}, 1: {}})
        files = sorted((folder / f"rank_{rank}").iterdir(), key=os.path.getmtime)
        # Of the first `fit`, a file for each epoch.
        for file in files[:2]:
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    assert value.metadata.plugin_data.plugin_name == "scalars"
                    share = float(tf.make_ndarray(value.tensor))
                    shares[event.step][value.tag] = share
    names = [f"step/{name}" for name in NAMES]
    for epoch in (0, 1):
        slow, fast = steps[1][epoch], steps[0][epoch]
        assert [*slow] == [*fast] == names
        assert sum(slow.values()) == pytest.approx(1.0)
        assert max(slow, key=slow.get) == "step/input"
        assert slow["step/input"] > fast["step/input"]
        assert fast["step/waiting"] > slow["step/waiting"]
