"""Models that go on in a job from where they were saved."""

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.requires("horovodrun")


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
