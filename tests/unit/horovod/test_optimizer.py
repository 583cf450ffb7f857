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
