"""Wrapping and loading optimizers."""

import zipfile

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.requires("horovodrun")


def test_it_has_the_class_name_and_the_config_of_the_optimizer(hvd):
    optimizer = keras.optimizers.Adam(0.5, beta_1=0.25)
    wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)

    assert isinstance(wrapped, keras.optimizers.Adam)
    assert type(wrapped).__name__ == "Adam"
    assert wrapped.get_config() == optimizer.get_config()
    made = wrapped.from_config(wrapped.get_config())
    assert made.get_config() == wrapped.get_config()
    assert made.reduction is wrapped.reduction


def test_a_trained_optimizer_is_told_to_begin_anew(hvd):
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(0.0)])
    with pytest.warns(RuntimeWarning, match="A distributed optimizer begins anew"):
        hvd.DistributedOptimizer(optimizer)


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


@pytest.mark.parametrize(
    "is_wrapped", [True, pytest.param(False, marks=pytest.mark.slow)]
)
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


@pytest.mark.slow
def test_of_an_hdf5_file_keras_reads_no_slots(hvd, saved, model):
    path = saved(hvd.DistributedOptimizer(keras.optimizers.Adam(0.25)), "model.h5")
    loaded = hvd.load_model(path)

    np.testing.assert_array_equal(loaded.get_weights(), model.get_weights())
    assert is_distributed(loaded.optimizer)
    assert loaded.optimizer.iterations.numpy() == 8
    assert loaded.optimizer.learning_rate.numpy() == 0.25


def test_a_saved_model_loads_in_plain_keras(hvd, saved):
    path = saved(hvd.DistributedOptimizer(keras.optimizers.Adam(clipnorm=1.0)))
    optimizer = keras.models.load_model(path).optimizer

    assert type(optimizer) is keras.optimizers.Adam
    assert optimizer.clipnorm == 1.0
    assert b"tfdist" not in zipfile.ZipFile(path).read("config.json")


class Halving(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * 0.5, variable, learning_rate)


def test_an_optimizer_that_keras_does_not_know(hvd, saved):
    path = saved(hvd.DistributedOptimizer(Halving(0.25)))
    loaded = hvd.load_model(path, custom_optimizers=[Halving])

    assert isinstance(loaded.optimizer, Halving)
    assert is_distributed(loaded.optimizer)


def test_what_keras_does_not_know_is_found_by_name(hvd, model, fit, tmp_path):
    def own_loss(y, y_pred):
        return keras.ops.abs(y - y_pred)

    model.compile("sgd", own_loss)
    fit()
    model.save(tmp_path / "model.keras")
    own = {"own_loss": own_loss}

    assert hvd.load_model(tmp_path / "model.keras", custom_objects=own).loss is own_loss
    with pytest.raises(
        ValueError, match=r"^legacy_opts must be False, because Keras 3"
    ):
        hvd.load_model(tmp_path / "model.keras", legacy_opts=True)
