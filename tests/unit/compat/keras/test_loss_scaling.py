"""Keras's loss scaling calls what we replace, in the order that we rely on."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers import trainer

from tfdist.compat.keras import install
from tfdist.compat.keras import loss_scaling as patches
from tfdist.strategies import AllReduceStrategy


@pytest.fixture
def patched():
    install(is_alone=True)


@pytest.fixture
def half_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def parameters_of(function):
    return [*inspect.signature(function).parameters]


def gradient_and_variable():
    return [tf.constant([3.0, 4.0])], [keras.Variable(np.zeros(2, "float32"))]


def scaled(variables, inner=None, **options):
    optimizer = LossScaleOptimizer(inner or keras.optimizers.SGD(1.0), **options)
    optimizer.build(variables)
    return optimizer


def compiled(optimizer, strategy=None, **options):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", **options)
    return model


# Keras's optimizer decides on what we hand it.


def test_the_names_by_which_keras_passes_arguments_are_ours_too():
    original = patches._common_apply

    assert original.__qualname__ == "LossScaleOptimizer._common_apply"
    assert parameters_of(original) == ["self", "grads", "trainable_variables"]
    assert parameters_of(patches._reduce_then_check_finite) == parameters_of(original)


def test_the_check_comes_before_the_inner_step(monkeypatch):
    calls = []
    for owner, name in (
        (LossScaleOptimizer, "_common_apply"),
        (LossScaleOptimizer, "check_finite"),
        (BaseOptimizer, "_filter_empty_gradients"),
    ):
        monkeypatch.setattr(owner, name, noting(getattr(owner, name), name, calls))
    gradients, variables = gradient_and_variable()

    scaled(variables).apply(gradients, variables)

    assert calls == ["_common_apply", "check_finite", "_filter_empty_gradients"]


def noting(function, name, noted):
    def call(*args, **kwargs):
        noted.append(name)
        return function(*args, **kwargs)

    return call


def test_loss_scaling_takes_this_way_wherever_no_merge_call_is_needed():
    names = LossScaleOptimizer._tf_apply.__code__.co_names

    assert "strategy_supports_no_merge_call" in names
    assert "_common_apply" in names
    assert tf.__internal__.distribute.strategy_supports_no_merge_call()


def test_the_finite_check_sees_the_gradients_that_we_pass_on(monkeypatch):
    seen = []

    def check(self, grads):
        seen.append([None if g is None else g.numpy().tolist() for g in grads])
        return tf.constant(False)

    monkeypatch.setattr(LossScaleOptimizer, "check_finite", check)
    gradients, variables = gradient_and_variable()

    scaled(variables)._common_apply(gradients, variables)

    assert seen == [[[3.0, 4.0]]]
    np.testing.assert_array_equal(variables[0].numpy(), [0.0, 0.0])


# Several replicas of TensorFlow: one update, outside of them.


def test_without_merge_call_is_undone():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    with patches._without_merge_call(strategy):
        within = strategy.extended._use_merge_call()

    assert (within, strategy.extended._use_merge_call()) == (False, True)
    assert "_use_merge_call" not in vars(strategy.extended)


def test_keras_asks_there_whether_it_must_merge():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    supports = tf.__internal__.distribute.strategy_supports_no_merge_call

    with strategy.scope(), patches._without_merge_call(strategy):
        assert supports()
    with strategy.scope():
        assert not supports()


def test_outside_of_the_replicas_we_reduce_nothing():
    gradients, variables = gradient_and_variable()
    optimizer, applied = scaled(variables), []

    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(RuntimeError, match="must be applied inside of strategy"),
    ):
        patches.apply_reduced(optimizer, gradients, variables, applied.append)
    assert applied == []


def test_outside_of_the_replicas_keras_reduces_nothing():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        gradients, variables = gradient_and_variable()
        sgd = keras.optimizers.SGD(1.0)
        pairs = list(zip(gradients, variables, strict=True))

        assert sgd._all_reduce_sum_gradients(pairs) is pairs


@pytest.mark.parametrize("make", [tf.distribute.MirroredStrategy, None])
def test_an_update_within_a_cond_works_there(make):
    """With accumulation, Keras's optimizers put the update into a cond."""
    strategy = make(["CPU:0"]) if make else tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        _, variables = gradient_and_variable()
        adam = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        adam.build(variables)

    @tf.function
    def step():
        def replica_step():
            gradients = [tf.constant([3.0, 4.0])]
            patches.apply_reduced(
                adam, gradients, variables, lambda sums: adam.apply(sums, variables)
            )

        strategy.run(replica_step)

    step()
    first = variables[0].numpy().tolist()
    step()

    assert first == [0.0, 0.0]
    np.testing.assert_array_equal(variables[0].numpy(), [-3.0, -4.0])


# `compile` wraps with the strategy's class.


def test_compile_takes_the_optimizer_first_and_gets_it_by_name():
    first = inspect.signature(inspect.unwrap(patches._compile)).parameters

    assert [*first][:2] == ["self", "optimizer"]
    assert first["optimizer"].default == "rmsprop"
    assert patches._compile.__qualname__ == "Trainer.compile"


@pytest.mark.usefixtures("half_precision")
def test_compile_under_a_strategy_of_tfdist_wraps_with_its_class():
    strategy = AllReduceStrategy()
    inner = keras.optimizers.SGD(0.5)
    model = compiled(inner, strategy)

    assert type(model.optimizer).__module__.startswith("tfdist.")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert model.optimizer.inner_optimizer is inner
    assert model.optimizer.name == "loss_scale_optimizer"


@pytest.mark.usefixtures("half_precision")
def test_what_is_saved_of_compile_is_what_keras_would_save():
    ours = compiled("sgd", AllReduceStrategy())
    theirs = compiled("sgd")

    mine, right = (m.get_compile_config()["optimizer"] for m in (ours, theirs))
    assert mine["class_name"] == right["class_name"] == "SGD"


@pytest.mark.usefixtures("half_precision")
def test_an_optimizer_that_scales_already_is_left_alone():
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())

    assert compiled(own, AllReduceStrategy()).optimizer is own


@pytest.mark.usefixtures("half_precision")
def test_auto_scale_loss_false_is_respected():
    model = compiled("sgd", AllReduceStrategy(), auto_scale_loss=False)

    assert type(model.optimizer) is keras.optimizers.SGD


def test_in_float32_nothing_is_wrapped():
    model = compiled("sgd", AllReduceStrategy())

    assert type(model.optimizer) is keras.optimizers.SGD
    assert compiled(None, AllReduceStrategy()).optimizer is None


@pytest.mark.usefixtures("half_precision", "patched")
def test_elsewhere_keras_wraps_with_its_own():
    assert type(compiled("sgd").optimizer) is trainer.LossScaleOptimizer


# The logs of an epoch.


def test_an_epoch_ends_with_a_dict_that_is_handed_on():
    assert parameters_of(CallbackList.on_epoch_end)[-1] == "logs"


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("inner", [keras.optimizers.SGD(), keras.optimizers.Adam()])
def test_the_scale_is_in_the_logs_for_all_callbacks(inner):
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(dict(logs)),
        on_train_end=lambda logs: seen.append(dict(logs)),
    )
    model = compiled(LossScaleOptimizer(inner, 8.0, dynamic_growth_steps=2))

    history = model.fit(
        np.ones((4, 1)), np.ones((4, 1)), batch_size=1, verbose=0, callbacks=[note]
    ).history

    assert history["loss_scale"] == [32.0]
    assert [logs["loss_scale"] for logs in seen] == [32.0, 32.0]
    # Keras's own optimizer does not count the steps that it skips.
    assert "skipped_steps" not in history


@pytest.mark.usefixtures("patched")
def test_without_loss_scaling_nothing_is_added():
    model = compiled("sgd")

    history = model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0).history

    assert set(history) == {"loss"}


@pytest.mark.usefixtures("patched")
def test_what_a_model_logs_itself_stays():
    class Logging(keras.Model):
        def train_step(self, data):
            return {"loss_scale": 7.0}

    model = Logging()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD()))
    model.build((1, 1))

    history = model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0).history

    assert history["loss_scale"] == [7.0]


def test_a_list_of_callbacks_may_have_no_model_and_an_epoch_no_logs():
    seen = []
    on_epoch_end = patches._with_scale(lambda self, epoch, logs: seen.append(logs))
    scaling = compiled(LossScaleOptimizer(keras.optimizers.SGD()))

    on_epoch_end(CallbackList([]), 0, {"loss": 1.0})
    on_epoch_end(CallbackList([], model=scaling), 0)

    assert seen == [{"loss": 1.0}, None]


# The current scale of any optimizer.


def test_the_scale_of_an_optimizer():
    _, variables = gradient_and_variable()

    assert patches.current_scale(keras.optimizers.SGD()) is None
    assert patches.current_scale(keras.optimizers.SGD(loss_scale_factor=4)) == 4.0
    assert patches.current_scale(LossScaleOptimizer(keras.optimizers.SGD(), 8)) == 8.0
    assert patches.current_scale(scaled(variables, initial_scale=8.0)) == 8.0


def test_keras_keeps_the_scale_where_we_read_it():
    _, variables = gradient_and_variable()
    optimizer = scaled(variables, initial_scale=8.0)

    assert float(optimizer.scale_loss(2.0)) == 16.0
    assert float(optimizer.dynamic_scale.numpy()) == optimizer.initial_scale == 8.0
