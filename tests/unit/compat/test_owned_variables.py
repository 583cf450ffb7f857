"""Optimizers that keep variables only of the weights that a rank owns."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.owned_variables import is_elsewhere, owner_of
from tfdist.sharding.assignment import DIVIDED
from tfdist.sharding.optimizers import ELEMENTWISE

# The equality matrix has the others.
PER_WEIGHT = {
    **{
        name: lambda name=name: getattr(keras.optimizers, name)(0.1)
        for name in ("Adafactor", "Adam", "Muon", "Nadam")
        # An older Keras lacks some.
        if hasattr(keras.optimizers, name)
    },
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "averages, overwritten": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=1
    ),
}
SHAPES, OWNERS = ((4, 6), (4, 4), (6,), (3, 3)), (0, 1, 0, 1)


@pytest.fixture
def strategy(first_of_two):
    """Return the strategy of rank 0 of two, which shards optimizers."""
    return first_of_two()


def weights(shapes=SHAPES):
    random = np.random.default_rng(2)
    return [
        keras.Variable(random.normal(size=shape).astype("float32"), name=f"weight_{i}")
        for i, shape in enumerate(shapes)
    ]


def small_model(strategy):
    with strategy.scope():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def dense(variable, value):
    return tf.fill(variable.shape, value)


def trained(make, variables, run=lambda call: call(), gradient_of=dense):
    """Apply two gradients to variables."""
    optimizer = make()
    optimizer.build(variables)
    for factor in (0.5, 2.0):
        gradients = [gradient_of(v, factor) for v in variables]
        run(lambda g=gradients: optimizer.apply(g, variables))
    optimizer.finalize_variable_values(variables)
    return optimizer


@pytest.mark.parametrize("name", PER_WEIGHT)
def test_a_rank_keeps_and_updates_what_it_owns(strategy, name):
    own, plain = weights(), weights()
    with strategy.scope():
        optimizer = trained(PER_WEIGHT[name], own, strategy.run)
    right = trained(PER_WEIGHT[name], plain)

    for variable, updated, before, owner in zip(
        own, plain, weights(), OWNERS, strict=True
    ):
        # Muon decays all weights, and gets the others from their owner.
        if owner == 0 or name != "Muon":
            expected = updated if owner == 0 else before
            np.testing.assert_array_equal(variable.numpy(), expected.numpy())
    assert len(optimizer.variables) == len(right.variables)
    for one, other in zip(optimizer.variables, right.variables, strict=True):
        assert (tuple(one.shape), one.dtype) == (tuple(other.shape), other.dtype)
        # Nadam has one that counts the variables made so far.
        assert one.name == other.name or one.name.startswith("variable")
        if is_elsewhere(one):
            assert owner_of(one) == 1
            assert one._value is None
        else:
            np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert any(map(is_elsewhere, optimizer.variables))


def sparse(variable, value):
    """A gradient of rows of both ranks, one of them twice."""
    values = tf.fill([4, *variable.shape[1:]], value)
    return tf.IndexedSlices(values, tf.constant([2, 0, 2, 4]), tf.shape(variable))


@pytest.mark.parametrize("gradient_of", [dense, sparse])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("Adam", "SGD") else pytest.mark.slow)
        for name in ELEMENTWISE
    ],
)
def test_a_rank_updates_its_rows_of_a_large_weight(strategy, name, gradient_of):
    if not hasattr(keras.optimizers.Optimizer, "add_optimizer_variables"):
        pytest.skip("Keras before 3.10 keeps whole weights")
    own, plain, before = (weights([(5, 3)])[0] for _ in range(3))

    def make():
        return getattr(keras.optimizers, name)(0.1, weight_decay=0.1, use_ema=True)

    with strategy.scope():
        optimizer = trained(make, [own], strategy.run, gradient_of)
    right = trained(make, [plain], gradient_of=gradient_of)

    np.testing.assert_array_equal(own.numpy()[:2], plain.numpy()[:2])
    np.testing.assert_array_equal(own.numpy()[2:], before.numpy()[2:])
    for one, other in zip(optimizer.variables, right.variables, strict=True):
        assert one.shape == other.shape
        if one.shape != (5, 3):
            continue
        assert owner_of(one) == DIVIDED
        np.testing.assert_array_equal(one.numpy(), other.numpy()[:2])
        one.assign(other.numpy() + 1)
        np.testing.assert_array_equal(one.numpy(), other.numpy()[:2] + 1)


class Custom(keras.optimizers.SGD):
    """An optimizer of a user, which may look across weights."""


def multi():
    optimizers = keras.optimizers
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD()))


ACROSS = {
    "MultiOptimizer": multi,
    "ScheduleFreeAdamW": lambda: keras.optimizers.ScheduleFreeAdamW(),
}
NAMES = (
    "Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Ftrl, Lamb, Lion, Muon, Nadam, "
    "RMSprop, SGD"
)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Custom, "Custom"),
        (lambda: keras.optimizers.LossScaleOptimizer(Custom()), "Custom"),
        *(
            (make, name)
            for name, make in ACROSS.items()
            if hasattr(keras.optimizers, name)
        ),
    ],
)
def test_an_optimizer_that_may_look_across_weights_is_refused(strategy, make, name):
    text = (
        "shard_optimizer=True needs an optimizer that updates each weight on its own. "
        f"Received: {name}. Use one of {NAMES}, tfdist.optimizers, or loss scaling "
        "around it, or leave out shard_optimizer."
    )
    model = small_model(strategy)
    with strategy.scope(), pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        model.compile(make(), "mse")
    with strategy.scope(), pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make().build(weights())


def test_an_optimizer_built_before_is_refused(strategy):
    optimizer = keras.optimizers.SGD(0.1, name="mine")
    optimizer.build(weights())
    text = (
        "shard_optimizer=True needs an optimizer that is built under the strategy. "
        "Received: mine, built before. Build it in strategy.scope(), or leave that to "
        "fit."
    )
    model = small_model(strategy)
    with strategy.scope(), pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        model.compile(optimizer, "mse")


def test_callbacks_that_save_on_the_chief_alone_are_refused(strategy, tmp_path):
    model = small_model(strategy)
    callback = keras.callbacks.BackupAndRestore(str(tmp_path))
    text = (
        "With shard_optimizer or shard_embeddings, all ranks must save a model "
        "together. Received: keras.callbacks.BackupAndRestore, which only the chief "
        "runs. Use tfdist.callbacks.BackupAndRestore."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        keras.callbacks.CallbackList([callback], model=model)


def test_checkpoints_of_tensorflow_are_refused(strategy, tmp_path):
    model = small_model(strategy)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    for save in (
        lambda: tf.train.Checkpoint(model=model).write(str(tmp_path / "a")),
        lambda: tf.saved_model.save(model, str(tmp_path / "b")),
    ):
        with pytest.raises(
            RuntimeError,
            match=r"^Checkpoints of TensorFlow and SavedModels cannot hold what ranks "
            r"share by shard_optimizer or shard_embeddings\. Received: \S+_momentum\. "
            r"Use model\.save; without the optimizer also model\.export or a "
            r"checkpoint, and with divided tables what keras\.models\.load_model "
            r"returns elsewhere\.$",
        ):
            save()
