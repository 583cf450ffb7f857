import keras
import pytest
import tensorflow as tf

from tfdist.compat.keras import hooks
from tfdist.strategies import AllReduceStrategy


class Strategy:
    """What the functions under test look at, and nothing more."""

    def __init__(self, is_alone):
        self.extended = self
        self.keras_hooks = self
        self.is_alone = is_alone


def model_under(strategy):
    with strategy.scope():
        return keras.Sequential([keras.layers.Dense(1)])


def test_strategies_of_tensorflow_have_no_hooks():
    strategy = tf.distribute.get_strategy()

    assert hooks.any_hooks_of(strategy) is None
    assert hooks.hooks_of(strategy) is None


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_process_alone_needs_no_hooks(is_alone):
    strategy = Strategy(is_alone)

    assert hooks.any_hooks_of(strategy) is strategy
    assert hooks.hooks_of(strategy) is (None if is_alone else strategy)


def test_a_model_knows_the_strategy_it_was_made_under():
    strategy = AllReduceStrategy()
    model = model_under(strategy)

    assert hooks.any_hooks_of_model(model) is strategy.extended.keras_hooks
    assert hooks.hooks_of_model(model) is None


def test_a_model_of_plain_keras_has_no_hooks():
    model = keras.Sequential([keras.layers.Dense(1)])

    assert hooks.any_hooks_of_model(model) is None
    assert hooks.hooks_of_model(model) is None
    assert hooks.any_hooks_of_model(object()) is None


def test_keras_writes_the_strategy_where_we_read_it():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

    assert model_under(strategy)._distribute_strategy is strategy


def test_here_no_strategy_is_at_work():
    assert hooks.current_hooks() is None
    with AllReduceStrategy().scope():
        assert hooks.current_hooks() is None


def test_our_strategies_answer_every_hook():
    found = AllReduceStrategy().extended.keras_hooks
    parts = [
        part for part in hooks.KerasHooks.__mro__ if part.__module__ == hooks.__name__
    ]
    asked = {name for part in parts for name in [*vars(part), *part.__annotations__]}

    missing = {n for n in asked if n[0] != "_" and not hasattr(found, n)}

    assert "prepare_gradients" in asked
    assert missing == set()
