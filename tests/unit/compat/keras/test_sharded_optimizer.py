from contextlib import contextmanager, nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks.backup.state import SavedVariables, TrainingVariables
from tfdist.collectives.single import SingleCollective
from tfdist.compat.keras import sharded
from tfdist.compat.keras.sharded import ShardedValue, shards_of, split_gradient
from tfdist.compat.keras.sharded_optimizer import apply_arguments
from tfdist.optimizers import LazyAdam

TABLE = np.random.default_rng(1).normal(size=(7, 3)).astype("float32")
STEPS = 4


@pytest.fixture
def cut(placing):
    """Return a block in which variables are cut."""

    @contextmanager
    def block(*sizes):
        placing.shards = [*sizes] or [4, 3]
        yield
        placing.shards = [1]

    return block


@pytest.fixture
def by_parts(monkeypatch):
    """Let parts have so many bytes; return a block in which shards go by parts only."""

    def by_parts(part_bytes):
        monkeypatch.setattr(sharded, "PART_BYTES", part_bytes)

        @contextmanager
        def block(*refused):
            with monkeypatch.context() as patch:
                for name in refused:
                    patch.setattr(ShardedValue, name, fail)
                yield

        return block

    return by_parts


def fail(*_):
    raise AssertionError("all rows at once")


def table_model(**options):
    layer = keras.layers.Embedding(7, 3, **options)
    return keras.Sequential([keras.Input((2,), dtype="int32"), layer])


def made():
    """Return a table and a vector, which is never cut, of Keras."""
    table = keras.Variable(
        lambda shape, dtype: tf.constant(TABLE, dtype),
        shape=TABLE.shape,
        dtype="float32",
        name="table",
    )
    bias = keras.Variable(np.ones(3, "float32"), name="bias")
    return table, bias


def gradients(step, *, sparse):
    random = np.random.default_rng(step)
    if not sparse:
        return tf.constant(random.normal(size=(7, 3)), "float32")
    # Some rows more than once, and in one step none of the second shard.
    rows = random.integers(0, 3 if step == 2 else 7, 6)
    values = random.normal(size=(6, 3)).astype("float32")
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([7, 3]))


def end(optimizer, table, bias, *, sparse):
    """Return what a table, and all that is kept of it, is after some steps."""
    optimizer.build([table, bias])

    of_bias = tf.constant([0.1, 0.2, -0.3])
    for step in range(STEPS):
        parts = split_gradient(gradients(step, sparse=sparse), table)
        given = apply_arguments(optimizer, [(table, parts), (bias, [of_bias])])
        tf.distribute.get_strategy().run(optimizer.apply, given)
    kept = dict(enumerate(v.numpy() for v in optimizer.variables))
    return {"table": table.numpy(), "bias": bias.numpy(), **kept}


OPTIMIZERS = {
    # The equality matrix has those that update each number on its own.
    **{
        name: {}
        for name in ("Adagrad", "Adam", "Lamb", "Muon", "Nadam", "ScheduleFreeAdamW")
        if hasattr(keras.optimizers, name)
    },
    "SGD, momentum, global_clipnorm": {"momentum": 0.9, "global_clipnorm": 0.5},
    "SGD, clipnorm": {"clipnorm": 0.5},
    "Adam, accumulation": {"gradient_accumulation_steps": 2},
    "SGD, EMA, overwrite": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 3,
    },
}
QUICK = ("Adam", "Muon", "SGD, momentum, global_clipnorm", "Adam, accumulation")


def optimizer_of(row):
    options = dict(OPTIMIZERS[row])
    return getattr(keras.optimizers, row.split(",")[0])(0.1, **options)


def check(cut, make, *, sparse=False):
    """Compare the end of shards with that of the whole."""
    expected = end(make(), *made(), sparse=sparse)
    with cut():
        table, bias = made()
        assert isinstance(table._value, ShardedValue)
        found = end(make(), table, bias, sparse=sparse)

    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=2e-5, atol=2e-6, err_msg=str(name)
        )


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=() if row in QUICK else pytest.mark.slow)
        for row in OPTIMIZERS
    ],
)
def test_an_update_of_shards_is_that_of_the_whole(cut, row):
    for sparse in (False, True):
        check(cut, lambda: optimizer_of(row), sparse=sparse)


class Normalised(keras.optimizers.SGD):
    """What an optimizer of a user may do: look at the whole gradient."""

    def update_step(self, gradient, variable, learning_rate):
        largest = keras.ops.max(keras.ops.abs(gradient))
        super().update_step(gradient / largest, variable, learning_rate)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), 8.0)


@pytest.mark.parametrize("make", [lambda: Normalised(0.1), scaled])
def test_so_it_is_with_what_looks_at_the_whole_gradient(cut, make):
    check(cut, make)


def test_only_rows_of_the_batch_are_updated_in_shards(cut):
    check(cut, lambda: LazyAdam(0.1), sparse=True)


@pytest.mark.parametrize("has_gradient", [True, False])
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, LazyAdam])
def test_shards_are_given_where_that_is_enough(cut, optimizer, has_gradient):
    with cut():
        table, bias = made()
    parts = split_gradient(tf.ones((7, 3)), table) if has_gradient else None
    grads, found = apply_arguments(optimizer(), [(table, parts), (bias, None)])

    assert [tuple(v.shape) for v in found] == [(4, 3), (3, 3), (3,)]
    shapes = [None if g is None else tuple(g.shape) for g in grads]
    assert shapes == ([(4, 3), (3, 3), None] if has_gradient else [None] * 3)


# Files.


def test_a_large_table_in_bfloat16_is_saved(cut, by_parts, tmp_path):
    by_parts(12)
    with cut():
        saved, loaded = (
            table_model(weights=[value], dtype="bfloat16")
            for value in (TABLE, 0 * TABLE)
        )
    saved.save_weights(tmp_path / "model.weights.h5")
    loaded.load_weights(tmp_path / "model.weights.h5")

    assert isinstance(loaded.layers[0]._embeddings._value, ShardedValue)
    np.testing.assert_array_equal(loaded.get_weights()[0], saved.get_weights()[0])
    assert saved.get_weights()[0].any()


@pytest.mark.parametrize("part_bytes", [sharded.PART_BYTES, 24])
def test_what_was_saved_of_shards_is_loaded_in_others(
    cut, by_parts, tmp_path, part_bytes
):
    only_parts = by_parts(part_bytes) if part_bytes == 24 else lambda _: nullcontext()
    with cut():
        model = table_model()
        model.compile("adam", "mse")
        table = model.layers[0].embeddings
        model.optimizer.build([table])
        parts = split_gradient(gradients(0, sparse=True), table)
        model.optimizer.apply(*apply_arguments(model.optimizer, [(table, parts)]))
        with only_parts("read_value"):
            model.save(tmp_path / "model.keras")
            weights = model.get_weights()
        np.testing.assert_array_equal(weights[0], table._value)
    with cut(2, 3, 2), only_parts("assign"):
        loaded = keras.models.load_model(tmp_path / "model.keras")

    assert [v.shape[0] for v in shards_of(table)] == [4, 3]
    assert [v.shape[0] for v in shards_of(loaded.layers[0].embeddings)] == [2, 3, 2]
    for found, expected in zip(
        [*loaded.weights, *loaded.optimizer.variables],
        [*model.weights, *model.optimizer.variables],
        strict=True,
    ):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    momentum = loaded.optimizer.variables[2]
    assert [v.shape[0] for v in shards_of(momentum)] == [2, 3, 2]


def test_a_backup_takes_and_restores_shards_by_parts(cut, by_parts):
    with cut():
        model = table_model()
    before = model.get_weights()[0]
    variables = TrainingVariables(model, with_metrics=False)
    with by_parts(24)("read_value", "assign"):
        specs, equal, own = variables.take(SingleCollective())
        model.set_weights([0 * before])
        saved = SavedVariables(specs, equal, [own])
        variables.restore(saved, SingleCollective(), metrics=False)

    np.testing.assert_array_equal(model.get_weights()[0], before)
    assert before.any()
