"""Updates of the rows of a batch, compared with updates of the table by Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.optimizers import LazyAdam, LazySGD

SLOW = pytest.mark.slow
TABLE = np.random.default_rng(1).normal(size=(7, 3))
OPTIONS = {
    "nothing": {},
    "clipped": {"clipvalue": 0.3, "use_ema": True},
    "amsgrad": {"amsgrad": True, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}
LAZY = [
    (LazyAdam, keras.optimizers.Adam, "nothing"),
    (LazyAdam, keras.optimizers.Adam, "clipped"),
    (LazyAdam, keras.optimizers.Adam, "amsgrad"),
    (LazySGD, keras.optimizers.SGD, "nothing"),
    (LazySGD, keras.optimizers.SGD, "nesterov"),
]


def sparse(step, indices):
    values = np.random.default_rng(step).normal(size=(len(indices), 3))
    shape = tf.constant([7, 3], tf.int64)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), shape)


def end(optimizer, steps):
    """Return a table, and the optimizer's state of it, after updates of some rows."""
    table = keras.Variable(TABLE, dtype="float64")
    optimizer.build([table])
    # Traced, as training is.
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [table]))
    for step, indices in enumerate(steps):
        apply(sparse(step, indices))
    kept = [v for v in optimizer.variables if v.shape == table.shape]
    return [v.numpy() for v in (table, *kept)]


@pytest.mark.parametrize(("lazy", "plain", "options"), LAZY)
def test_rows_of_the_batch_get_the_update_of_keras(lazy, plain, options):
    # All rows, some of them repeatedly.
    steps = [[0, 1, 2, 3, 4, 5, 6, 3, 3], [6, 5, 4, 3, 2, 1, 0, 0], range(7)]
    found = end(lazy(0.1, **OPTIONS[options]), steps)
    expected = end(plain(0.1, **OPTIONS[options]), steps)

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_all_other_rows_are_left_with_their_momentum():
    first, last = (end(LazyAdam(0.1), [[1, 2, 4]] + [[4, 6]] * n) for n in (0, 3))

    for one, other in zip(last, first, strict=True):
        np.testing.assert_array_equal(one[[0, 1, 2, 3, 5]], other[[0, 1, 2, 3, 5]])
        assert (one[[4, 6]] != other[[4, 6]]).all()


@pytest.mark.parametrize("optimizer", [LazyAdam, pytest.param(LazySGD, marks=SLOW)])
def test_dense_gradients_and_files_are_those_of_keras(optimizer, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer(0.1), "mse")
    model.fit(TABLE, TABLE[:, :1], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")

    assert type(loaded.optimizer) is optimizer
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
