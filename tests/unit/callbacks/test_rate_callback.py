"""What callbacks of the learning rate have in common, on ranks that are threads."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tfdist.callbacks.rate_callback import RateCallback


def begin(on_ranks, *learning_rates):
    """Let ranks with these rates begin their first epoch."""

    def run(collective):
        callback = RateCallback()
        scope = tf.distribute.get_strategy().scope
        strategy = SimpleNamespace(collective=collective, scope=scope)
        optimizer = keras.optimizers.SGD(learning_rates[collective.rank])
        callback.set_model(
            SimpleNamespace(distribute_strategy=strategy, optimizer=optimizer)
        )
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        callback.on_epoch_begin(1)
        return callback._rates.facts()

    return on_ranks(len(learning_rates), run)


def test_ranks_begin_with_equal_rates(on_ranks):
    assert begin(on_ranks, 0.5, 0.5) == [[[0.5, None, 1.0]]] * 2


def test_ranks_with_different_rates_are_refused(on_ranks):
    with pytest.raises(
        RuntimeError,
        match=r"^RateCallback needs the same learning rates on every rank\. Received: "
        r"\[\[\[0\.5, None, 1\.0\]\], \[\[0\.25, None, 1\.0\]\]\], by rank: the base, ",
    ):
        begin(on_ranks, 0.5, 0.25)
