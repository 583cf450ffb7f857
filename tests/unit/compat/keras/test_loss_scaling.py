"""Loss scaling: the finite check, `compile`, and the logs of an epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import CallbackList

from tfdist.compat.keras.install import install
from tfdist.compat.keras.optimizer import apply_reduced, current_scale
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.strategies import AllReduceStrategy

KERAS_S = keras.optimizers.LossScaleOptimizer


@pytest.fixture(autouse=True)
def patched():
    install(is_alone=True)


@pytest.fixture
def half_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def compiled(optimizer, strategy=None, **options):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", run_eagerly=True, **options)
    return model


@pytest.mark.parametrize("kind", [KERAS_S, LossScaleOptimizer])
def test_the_finite_check_sees_the_gradients_of_all_ranks(twin, kind):
    """Twice a finite gradient may be none."""
    strategy = twin()
    with strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = kind(keras.optimizers.SGD(1.0), initial_scale=4.0)
        optimizer.build([variable])
    for gradient in (4.0, 3e38):
        strategy.run(lambda g=gradient: optimizer.apply([tf.constant([g])], [variable]))

    assert variable.numpy().tolist() == [1.0 - 2 * 4 / 4]
    assert current_scale(optimizer) == 2.0


# Several replicas of TensorFlow: one update, outside of them.


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_an_update_in_a_cond_works_under_strategies_of_tensorflow(is_mirrored):
    """With accumulation, Keras's optimizers put the update into a cond."""
    if is_mirrored:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    else:
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        variables = [keras.Variable(np.zeros(2, "float32"))]
        inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        inner.build(variables)

    @tf.function
    def step():
        def replica_step():
            gradients = [tf.constant([3.0, 4.0])]
            apply_reduced(
                inner, gradients, variables, lambda sums: inner.apply(sums, variables)
            )

        strategy.run(replica_step)

    step()
    assert variables[0].numpy().tolist() == [0.0, 0.0]
    step()
    assert variables[0].numpy().tolist() == [-3.0, -4.0]
    assert "_use_merge_call" not in vars(strategy.extended)


# `compile` wraps with the strategy's class.


@pytest.mark.usefixtures("half_precision")
def test_compile_wraps_a_float16_model_s_optimizer_with_the_class_of_tfdist():
    strategy, inner = AllReduceStrategy(), keras.optimizers.SGD(0.5)
    model = compiled(inner, strategy)

    assert type(model.optimizer) is LossScaleOptimizer
    assert model.optimizer.inner_optimizer is inner
    assert model.optimizer.name == "loss_scale_optimizer"
    assert model.get_compile_config()["optimizer"]["class_name"] == "SGD"
    # Elsewhere, or if it scales already, or need not.
    assert type(compiled("sgd").optimizer) is KERAS_S
    own = KERAS_S(keras.optimizers.SGD())
    assert compiled(own, strategy).optimizer is own
    unscaled = compiled("sgd", strategy, auto_scale_loss=False)
    assert type(unscaled.optimizer) is keras.optimizers.SGD


def test_in_float32_compile_wraps_nothing():
    strategy = AllReduceStrategy()

    assert type(compiled("sgd", strategy).optimizer) is keras.optimizers.SGD
    assert compiled(None, strategy).optimizer is None


# The logs of an epoch.


def test_the_scale_is_in_the_logs_for_all_callbacks():
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["loss_scale"])
    )
    data = (np.array([[1.0], [np.inf], [1.0]]), np.ones((3, 1)))
    options = {"batch_size": 1, "verbose": 0, "callbacks": [note], "shuffle": False}

    def log(kind):
        model = compiled(kind(keras.optimizers.SGD(), 8.0))
        return model.fit(*data, **options).history

    ours, keras_s = log(LossScaleOptimizer), log(KERAS_S)
    assert ours["loss_scale"] == keras_s["loss_scale"] == [4.0]
    assert seen == [4.0, 4.0]
    assert ours["skipped_steps"] == [1]
    # Keras's own optimizer does not count the steps that it skips.
    assert "skipped_steps" not in keras_s
    assert set(compiled("sgd").fit(*data, verbose=0).history) == {"loss"}


def test_logs_of_a_model_s_own_stay_and_may_be_missing():
    model, seen = compiled(KERAS_S(keras.optimizers.SGD())), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs)
    )
    CallbackList([note], model=model).on_epoch_end(0, {"loss_scale": 7.0})
    CallbackList([note], model=model).on_epoch_end(0, None)
    CallbackList([note]).on_epoch_end(0, {"loss": 1.0})

    assert seen == [{"loss_scale": 7.0}, {}, {"loss": 1.0}]


def test_the_scale_of_an_optimizer():
    built = KERAS_S(keras.optimizers.SGD(), 8.0)
    built.build([keras.Variable([1.0])])

    assert current_scale(keras.optimizers.SGD()) is None
    assert current_scale(keras.optimizers.SGD(loss_scale_factor=4)) == 4.0
    assert current_scale(KERAS_S(keras.optimizers.SGD(), 8)) == 8.0
    assert current_scale(built) == float(built.scale_loss(1.0)) == 8.0
