"""What Keras's callbacks remember is what they go on with."""

import keras
import numpy as np
import pytest

from tfdist.compat.keras.callbacks import set_state_of_callback, state_of_callback

MAKES = {
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping(
        "loss", patience=2, restore_best_weights=True, start_from_epoch=1
    ),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(
        "loss", patience=2, cooldown=1, factor=0.5
    ),
    "History": keras.callbacks.History,
}
LOSSES = [5.0, 4.0, 4.5, 3.0, 3.5, 3.2, 3.1, 3.3, 2.0, 2.5]


@pytest.fixture
def make():
    """Return a function that makes a model that is in training, and a callback."""

    def make(kind):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1.0), "mse")
        model.stop_training = False
        callback = MAKES[kind]()
        callback.set_model(model)
        callback.set_params({"epochs": len(LOSSES)})
        callback.on_train_begin()
        return model, callback

    return make


def go_on(model, callback, epochs):
    """Train for some epochs; return what the callback has done in each."""
    done = []
    for epoch in epochs:
        model.layers[0].kernel.assign([[float(epoch)]])
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": LOSSES[epoch]})
        rate = float(model.optimizer.learning_rate.numpy())
        weight = float(model.layers[0].kernel.numpy()[0, 0])
        done.append((rate, model.stop_training, weight))
        if model.stop_training:
            break
    callback.on_train_end()
    return done, float(model.layers[0].kernel.numpy()[0, 0]), str(callback.__dict__)


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("cut", range(1, len(LOSSES) - 1))
def test_it_goes_on_as_if_nothing_had_been(make, kind, cut):
    right_model, right = make(kind)
    expected, weight, _ = go_on(right_model, right, range(len(LOSSES)))

    model, callback = make(kind)
    before, *_ = go_on(model, callback, range(cut))
    state = state_of_callback(callback)
    other_model, other = make(kind)
    other_model.optimizer.learning_rate = float(model.optimizer.learning_rate.numpy())
    set_state_of_callback(other, state)
    rest = range(cut, 0 if model.stop_training else len(LOSSES))
    after, other_weight, _ = go_on(other_model, other, rest)

    assert before + after == expected
    assert other_weight == weight
    if kind == "History":
        assert other.history == right.history == {"loss": LOSSES}
        assert other.epoch == [*range(len(LOSSES))]


def test_the_best_weights_are_among_it(make):
    model, callback = make("EarlyStopping")
    go_on(model, callback, range(4))
    state = state_of_callback(callback)

    assert state["best"] == 3.0
    np.testing.assert_array_equal(state["best_weights"][0], [[3.0]])


def test_a_kind_that_inherits_has_what_the_other_has():
    class Mine(keras.callbacks.EarlyStopping):
        pass

    callback = Mine("loss")
    callback.wait = 3
    state = state_of_callback(callback)
    other = Mine("loss")
    set_state_of_callback(other, state)

    assert other.wait == 3


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.Callback(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=print),
        object(),
    ],
)
def test_others_remember_nothing(callback):
    assert state_of_callback(callback) is None


def test_model_checkpoint_goes_on_counting(tmp_path):
    def make():
        return keras.callbacks.ModelCheckpoint(tmp_path / "m.keras", save_freq=5)

    callback = make()
    saved = [callback._should_save_on_batch(batch) for batch in range(3)]
    other = make()
    set_state_of_callback(other, state_of_callback(callback))
    saved += [other._should_save_on_batch(batch) for batch in range(3, 10)]

    assert saved == [number % 5 == 0 for number in range(1, 11)]


@pytest.mark.skipif(
    not hasattr(keras.callbacks, "SwapEMAWeights"), reason="Keras has it from 3.6 on"
)
def test_swapped_weights_are_known_to_be_swapped(make):
    callback = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    callback._ema_weights_in_model = True
    other = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    set_state_of_callback(other, state_of_callback(callback))

    assert other._ema_weights_in_model is True
