"""One process; several are in tests/distributed/test_mixed_precision.py."""

import re
import warnings

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.mixed_precision import LossScaleOptimizer, loss_scale

INF = float("inf")


def scaled(inner=None, **options):
    """Return an optimizer and the variable that it was built with."""
    optimizer = LossScaleOptimizer(inner or keras.optimizers.SGD(1.0), **options)
    variable = keras.Variable(np.array([3.0, 4.0], "float32"))
    optimizer.build([variable])
    return optimizer, variable


def state_of(optimizer):
    """Return scale, finite steps, overflows and skipped steps."""
    return (
        float(optimizer.dynamic_scale.numpy()),
        int(optimizer.step_counter.numpy()),
        int(optimizer.overflow_counter.numpy()),
        int(optimizer.skipped_steps.numpy()),
    )


def model_of(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def batch(overflows=False):
    x = np.array([[1.0, 2.0], [0.5, INF if overflows else -1.0]], "float32")
    return x, np.array([[1.0], [0.0]], "float32")


def trained(optimizer, steps):
    """Return a model after steps, of which "x" overflows."""
    model = model_of(optimizer)
    for step in steps:
        model.train_on_batch(*batch(step == "x"))
    return model


@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
def test_a_step_that_overflows_is_skipped(bad):
    optimizer, variable = scaled(initial_scale=8.0)

    optimizer.apply([tf.constant([1.0, bad])], [variable])

    np.testing.assert_array_equal(variable.numpy(), [3.0, 4.0])
    assert state_of(optimizer) == (4.0, 0, 1, 1)
    assert int(optimizer.iterations.numpy()) == 0


def test_missing_and_sparse_gradients():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=2.0)
    unused, table = (keras.Variable(np.ones(3, "float32")) for _ in range(2))
    optimizer.build([unused, table])
    sparse = tf.IndexedSlices(tf.constant([4.0]), tf.constant([1]), tf.constant([3]))

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, sparse], [unused, table])

    np.testing.assert_array_equal(unused.numpy(), [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(table.numpy(), [1.0, -1.0, 1.0])


def test_a_skipped_step_leaves_what_was_accumulated():
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    optimizer, variable = scaled(inner, initial_scale=2.0, dynamic=False)

    for gradient in ([4.0, 0.0], [INF, 0.0], [0.0, 8.0]):
        optimizer.apply([tf.constant(gradient)], [variable])

    np.testing.assert_array_equal(variable.numpy(), [2.0, 2.0])


def test_a_step_without_variables_is_refused():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(), name="scaling")

    with pytest.raises(
        ValueError, match=r"must be given .*=None. Pass them, or call scaling.build"
    ):
        optimizer.apply([tf.ones(1)])


def test_keras_own_ends_with_the_same_weights():
    ours = trained(LossScaleOptimizer(keras.optimizers.Adam(0.1), 8.0, 2), "..x...")
    own = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), 8.0, 2)
    theirs = trained(own, "..x...")

    for mine, right in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, right)
    assert loss_scale(ours) == loss_scale(theirs) == 16.0


def test_the_config_makes_the_same_optimizer():
    inner = keras.optimizers.Adam(0.1, clipnorm=1.0)
    optimizer = LossScaleOptimizer(
        inner, 64.0, 7, "scaling", hysteresis=3, maximum_scale=128.0
    )

    again = LossScaleOptimizer.from_config(optimizer.get_config())

    assert again.rule == optimizer.rule
    assert again.get_config() == optimizer.get_config()
    assert (again.name, again.inner_optimizer.clipnorm) == ("scaling", 1.0)


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    inner = keras.optimizers.Adam(0.1)
    model = trained(LossScaleOptimizer(inner, 8.0, 3, hysteresis=2), "..x.")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    loaded = state_of(again.optimizer)
    for one in (model, again):
        one.train_on_batch(*batch(overflows=True))
        one.train_on_batch(*batch())

    assert type(again.optimizer) is LossScaleOptimizer
    assert loaded == (8.0, 1, 1, 1)
    assert state_of(again.optimizer) == state_of(model.optimizer) == (4.0, 1, 2, 2)
    for mine, right in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("ours_saves", [True, False])
def test_the_state_goes_from_and_to_keras_own(tmp_path, ours_saves):
    kinds = [LossScaleOptimizer, keras.optimizers.LossScaleOptimizer]
    saves, loads = kinds if ours_saves else reversed(kinds)
    model = trained(saves(keras.optimizers.Adam(0.1), 8.0), "..x.")
    model.save_weights(tmp_path / "model.weights.h5")
    again = model_of(loads(keras.optimizers.Adam(0.1), 8.0))
    again.optimizer.build(again.trainable_variables)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_weights(tmp_path / "model.weights.h5")

    assert loss_scale(again) == 4.0
    assert int(again.optimizer.iterations.numpy()) == 3
    for mine, right in zip(
        again.optimizer.inner_optimizer.variables,
        model.optimizer.inner_optimizer.variables,
        strict=True,
    ):
        np.testing.assert_array_equal(mine.numpy(), right.numpy())


@pytest.mark.parametrize(
    "inner", ["adam", None, LossScaleOptimizer(keras.optimizers.SGD())]
)
def test_only_an_optimizer_without_loss_scaling_is_wrapped(inner):
    with pytest.raises(
        TypeError, match=r"must be a Keras optimizer .*Pass for example"
    ):
        LossScaleOptimizer(inner)


def test_an_inner_optimizer_with_a_factor_of_its_own_is_refused():
    with pytest.raises(ValueError, match=r"loss_scale_factor=4.0. Leave it out there"):
        LossScaleOptimizer(keras.optimizers.SGD(loss_scale_factor=4.0))


def test_counters_of_32_bits_are_loaded_from_older_files(tmp_path):
    path = tmp_path / "model.weights.h5"
    trained(LossScaleOptimizer(keras.optimizers.Adam(0.1), 8.0), "..x.").save_weights(
        path
    )
    with h5py.File(path, "r+") as file:
        counters = []
        file.visititems(lambda name, _: counters.append(name))
        counters = [name for name in counters if re.search(r"counters/vars/\d$", name)]
        for name in counters:
            value = np.int32(file[name][()])
            del file[name]
            file[name] = value
    again = model_of(LossScaleOptimizer(keras.optimizers.Adam(0.1), 8.0))
    again.optimizer.build(again.trainable_variables)

    again.load_weights(path)

    assert len(counters) == 2
    assert again.optimizer.skipped_steps.dtype == "int64"
    assert int(again.optimizer.skipped_steps.numpy()) == 1
