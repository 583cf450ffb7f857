"""Wrapping and loading optimizers."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.requires("horovodrun")


@keras.saving.register_keras_serializable(package="mine")
class Registered(keras.optimizers.SGD):
    pass


class Unregistered(keras.optimizers.SGD):
    pass


def small_model(optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, keras.losses.MeanSquaredError())
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    return model


def test_the_class_has_the_name_of_the_optimizers(hvd):
    optimizer = keras.optimizers.Adam(0.5, beta_1=0.25)
    wrapped = hvd.DistributedOptimizer(optimizer)

    assert isinstance(wrapped, keras.optimizers.Adam)
    assert type(wrapped).__name__ == "Adam"
    assert wrapped.get_config() == optimizer.get_config()
    assert wrapped.reduction.options.name == "DistributedAdam"


def test_what_is_made_from_the_config_is_wrapped_again(hvd):
    wrapped = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.5), backward_passes_per_step=2
    )
    for made in (
        wrapped.from_config(wrapped.get_config()),
        wrapped.__class__.from_config(wrapped.get_config()),
    ):
        assert made.get_config() == wrapped.get_config()
        assert made.reduction is wrapped.reduction


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_a_saved_model_loads_in_plain_keras(hvd, tmp_path, name):
    optimizer = keras.optimizers.Adam(0.5, clipnorm=1.0)
    small_model(hvd.DistributedOptimizer(optimizer)).save(tmp_path / name)
    code = f"""
import keras, json, sys
optimizer = keras.models.load_model({str(tmp_path / name)!r}).optimizer
is_plain = type(optimizer) is keras.optimizers.Adam
print(json.dumps([is_plain, optimizer.clipnorm, "tfdist" in sys.modules]))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert json.loads(done.stdout) == [True, 1.0, False]


def test_an_optimizer_of_ones_own_loads_by_the_name_it_was_registered_by(hvd, tmp_path):
    small_model(hvd.DistributedOptimizer(Registered(0.5))).save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")

    assert type(loaded.optimizer) is Registered


def test_an_optimizer_that_is_not_registered_loads_when_it_is_named(hvd, tmp_path):
    small_model(hvd.DistributedOptimizer(Unregistered(0.5))).save(tmp_path / "m.keras")
    own = {"Unregistered": Unregistered}
    loaded = keras.models.load_model(tmp_path / "m.keras", custom_objects=own)

    assert type(loaded.optimizer) is Unregistered


def test_a_schedule_of_ones_own_needs_no_registration(hvd):
    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return keras.ops.power(0.5, keras.ops.cast(step, "float32"))

        def get_config(self):
            return {}

    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD(Halving()))
    x = keras.Variable(0.0)
    for _ in range(3):
        wrapped.apply([1.0], [x])

    assert float(x) == -1.75


def test_a_trained_optimizer_is_told_to_begin_anew(hvd):
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(0.0)])
    with pytest.warns(RuntimeWarning, match="A distributed optimizer begins anew"):
        hvd.DistributedOptimizer(optimizer)


def test_partial_is_distributed_but_for_the_local_layers(hvd):
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    wrapped = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(), local_layers=layer
    )

    assert len(wrapped._local_keys) == 2


@pytest.mark.parametrize("is_scaled", [False, True])
def test_what_does_not_decay_still_does_not(hvd, is_scaled):
    x, y = keras.Variable(1.0, name="x"), keras.Variable(1.0, name="y")
    z = keras.Variable(1.0, name="z")
    optimizer = keras.optimizers.AdamW(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[x], var_names=["y"])
    if is_scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    wrapped = hvd.DistributedOptimizer(optimizer)
    wrapped.apply([0.0, 0.0, 0.0], [x, y, z])

    assert [float(one) for one in (x, y, z)] == [1.0, 1.0, 0.75]


def test_a_config_that_lacks_an_argument_is_refused(hvd):
    class Forgetful(keras.optimizers.SGD):
        def __init__(self, learning_rate=0.1, strength=1.0, **kwargs):
            super().__init__(learning_rate, **kwargs)
            self.strength = strength

    hvd.DistributedOptimizer(Forgetful(0.5))
    with pytest.raises(
        ValueError,
        match=r"^The config of an optimizer must tell all of its arguments\. Received: "
        r"Forgetful, whose config makes one that differs in strength\. Add to get_c",
    ):
        hvd.DistributedOptimizer(Forgetful(0.5, strength=2.0))


def test_loss_scaling_needs_no_registration_either(hvd):
    class Own(keras.optimizers.SGD):
        pass

    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return keras.ops.power(0.5, keras.ops.cast(step, "float32"))

        def get_config(self):
            return {}

    def constant():
        return 0.25

    for rate in (Halving(), constant, 0.5):
        scaler = keras.optimizers.LossScaleOptimizer(Own(rate), initial_scale=8.0)
        wrapped = hvd.DistributedOptimizer(scaler)

        assert type(wrapped.inner_optimizer) is Own
        assert wrapped.inner_optimizer is not scaler.inner_optimizer
        assert wrapped.initial_scale == 8.0
        if rate != 0.5:
            assert wrapped.inner_optimizer._learning_rate is rate


def is_distributed(optimizer):
    return hasattr(optimizer, "register_local_var")


@pytest.fixture
def saved(hvd, model, fit, tmp_path):
    """Return a function that trains with an optimizer and saves the model."""

    def save(optimizer, name="model.keras"):
        model.compile(optimizer, keras.losses.MeanSquaredError())
        fit(epochs=2)
        model.save(tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_the_optimizer_goes_on_from_where_it_was(hvd, saved, model, is_wrapped):
    optimizer = keras.optimizers.Adam(0.25)
    path = saved(hvd.DistributedOptimizer(optimizer) if is_wrapped else optimizer)
    loaded = hvd.load_model(path)

    assert is_distributed(loaded.optimizer)
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    pairs = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    x = np.ones((4, 1), "float32")
    for one in (loaded, model):
        one.fit(x, x, batch_size=1, verbose=0)
    np.testing.assert_allclose(loaded.get_weights(), model.get_weights(), rtol=1e-6)
    assert loaded.optimizer.iterations.numpy() == 12


def test_of_an_hdf5_file_keras_reads_no_slots(hvd, saved, model):
    path = saved(hvd.DistributedOptimizer(keras.optimizers.Adam(0.25)), "model.h5")
    loaded = hvd.load_model(path)

    np.testing.assert_array_equal(loaded.get_weights(), model.get_weights())
    assert is_distributed(loaded.optimizer)
    assert loaded.optimizer.iterations.numpy() == 8
    assert loaded.optimizer.learning_rate.numpy() == 0.25


def test_plain_keras_loads_what_was_saved_with_a_distributed_optimizer(hvd, saved):
    path = saved(hvd.DistributedOptimizer(keras.optimizers.Adam(0.25)))

    assert type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam


def test_a_loss_scale_optimizer_is_wrapped_with_what_is_inside(hvd, saved):
    inner = keras.optimizers.SGD(0.25, momentum=0.5)
    path = saved(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))
    optimizer = hvd.load_model(path).optimizer

    assert is_distributed(optimizer)
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert optimizer.inner_optimizer.momentum == 0.5
    assert optimizer.dynamic_scale.numpy() == 8.0


class Halving(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * 0.5, variable, learning_rate)


def test_an_optimizer_that_keras_does_not_know(hvd, saved):
    path = saved(hvd.DistributedOptimizer(Halving(0.25)))
    loaded = hvd.load_model(path, custom_optimizers=[Halving])

    assert isinstance(loaded.optimizer, Halving)
    assert is_distributed(loaded.optimizer)


def test_custom_objects_are_found_by_name(hvd, model, fit, tmp_path):
    def own_loss(y, y_pred):
        return keras.ops.abs(y - y_pred)

    model.compile("sgd", own_loss)
    fit()
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(
        tmp_path / "model.keras", custom_objects={"own_loss": own_loss}
    )

    assert loaded.loss is own_loss


def test_a_model_without_an_optimizer_stays_one(hvd, tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")

    assert getattr(hvd.load_model(tmp_path / "model.keras"), "optimizer", None) is None


def test_legacy_optimizers_are_refused(hvd):
    with pytest.raises(
        ValueError,
        match=r"^legacy_opts must be False, because Keras 3 has no legacy optimizers\. "
        r"Received: legacy_opts=True\. Leave it out",
    ):
        hvd.load_model("model.keras", legacy_opts=True)
