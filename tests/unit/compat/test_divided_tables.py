"""Refusals of divided tables, on a rank whose peer does as it does."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.owned_variables import DividedTable


@pytest.fixture
def strategy(first_of_two):
    """Return the strategy of rank 0 of two, which divides tables of 100 bytes."""
    return first_of_two(shards_optimizers=False, table_bytes=100)


def built(strategy, rows=10, width=4, **options):
    with strategy.scope():
        layer = keras.layers.Embedding(rows, width, **options)
        layer.build()
    return layer


def test_only_tables_of_that_size_with_enough_rows_are_divided(strategy):
    assert built(strategy)._embeddings._value.shape == (5, 4)
    assert built(strategy).embeddings.shape == (10, 4)
    for small in (built(strategy, width=2), built(strategy, rows=1, width=100)):
        assert not isinstance(small.embeddings, DividedTable)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"embeddings_regularizer": "l2"}, "embeddings_regularizer"),
        ({"embeddings_constraint": "max_norm"}, "embeddings_constraint"),
        ({"lora_rank": 2}, "lora_rank"),
        ({"dtype": "int8_from_float32"}, "a quantized dtype"),
    ],
)
def test_what_needs_the_whole_table_is_refused(strategy, options, name):
    text = rf"Received: embedding\S* of 160 bytes with {name}\. Leave that out, or keep"
    with pytest.raises(ValueError, match=text):
        built(strategy, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Lamb(0.1),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor(0.1)),
        lambda: type("Mine", (keras.optimizers.Adam,), {})(0.1),
    ],
)
def test_an_optimizer_of_whole_weights_is_refused(strategy, make):
    layer = built(strategy)
    with strategy.scope(), pytest.raises(ValueError, match="updates each row of a"):
        make().build(layer.trainable_variables)


@pytest.mark.parametrize(
    "read",
    [
        lambda layer: layer.get_weights(),
        lambda layer: tf.matmul(tf.ones([2, 4]), layer.embeddings, transpose_b=True),
        lambda layer: keras.ops.sum(layer.embeddings),
        lambda layer: layer.embeddings[0],
    ],
)
def test_reading_the_table_is_refused(strategy, read):
    layer = built(strategy)
    text = (
        r"which only lookups of its Embedding read\. Received: embedding\S*, read .* "
        r"call model\.save on every rank .* give shard_embeddings more than its 160"
    )
    with strategy.scope(), pytest.raises(RuntimeError, match=text):
        read(layer)


def test_a_lookup_of_one_rank_is_refused(strategy):
    layer = built(strategy)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    x = np.zeros((2, 3), "int32")
    for look_up in (model, model.predict_on_batch):
        text = re.escape("Call model.predict on every rank, or save the model")
        with pytest.raises(RuntimeError, match=text):
            look_up(x)


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping("loss", restore_best_weights=True),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.TensorBoard(histogram_freq=1),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_a_callback_that_would_read_the_table_is_refused_at_once(strategy, callback):
    layer = built(strategy)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    text = f"Received: {type(callback).__name__}, which reads them, and embedding"

    with pytest.raises(ValueError, match=text):
        keras.callbacks.CallbackList([callback], model=model)


def test_all_or_own_rows_can_be_assigned(strategy):
    table = built(strategy)._embeddings
    values = np.arange(40.0, dtype="float32").reshape(10, 4)
    for given in (values, values[:5]):
        table.assign(np.zeros((10, 4), "float32"))
        table.assign(given)
        np.testing.assert_array_equal(table._value.numpy(), values[:5])
