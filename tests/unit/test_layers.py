"""`DynamicEmbedding` in one process, where it is not trained, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.layers import DynamicEmbedding
from tfdist.optimizers import LazyAdam
from tfdist.sharding.dynamic import DynamicRows, TableSpec
from tfdist.sharding.optimizers import check_updates_dynamic

KINDS = keras.optimizers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, r"dim must be a positive whole number. Received: dim=0. Use"),
        ({"admit_after": 1.5}, r"Received: admit_after=1.5"),
        ({"expire_steps": True}, r"Received: expire_steps=True"),
        ({"id_dtype": "int32"}, r"id_dtype must be 'int64' or 'string'. Received"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DynamicEmbedding(**{"dim": 4, **arguments})


@pytest.mark.parametrize(
    ("id_dtype", "ids"),
    [("int64", ["a"]), ("string", [1]), ("int64", [1.0]), ("int64", np.uint64([1]))],
)
def test_ids_of_another_type_are_refused(id_dtype, ids):
    layer = DynamicEmbedding(4, id_dtype=id_dtype)
    ids = tf.convert_to_tensor(ids)

    with pytest.raises(ValueError, match="looks up such ids. Received: "):
        layer(ids)


@pytest.mark.parametrize("ids", [[[1, 2], [3]], [["a"], [], ["b", "a"]]])
def test_ids_without_a_row_have_the_default_row(ids):
    ids = tf.ragged.constant(ids)
    layer = DynamicEmbedding(
        4, id_dtype="string" if ids.dtype == tf.string else "int64"
    )

    rows = layer(ids)

    assert rows.row_lengths().numpy().tolist() == ids.row_lengths().numpy().tolist()
    assert not rows.flat_values.numpy().any()
    assert layer.size() == 0
    assert len(layer.export()[0]) == 0


def test_it_is_made_anew_from_its_config():
    layer = DynamicEmbedding(4, 2, 10, id_dtype="string", seed=3, name="table")
    config = layer.get_config()

    assert DynamicEmbedding.from_config(config).get_config() == config


def test_what_only_servers_do_is_refused(tmp_path):
    layer = DynamicEmbedding(4)
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer])
    model.compile("adam", "mse", jit_compile=False)
    ids = np.array([[1, 2]])

    with pytest.raises(ValueError, match="trained by ParameterServerStrategy alone"):
        model.fit(ids, np.zeros((1, 2, 4)), verbose=0)
    with pytest.raises(ValueError, match="saved by model.save and model.save_weights"):
        model.export(tmp_path / "exported", verbose=False)
    with pytest.raises(
        ValueError, match="as many rows as it has ids. Received: 1 rows"
    ):
        layer.trainable_weights[0].assign(np.zeros((1, 4)))
    with (
        tfdist.strategies.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(ValueError, match="Received: .* in the scope of OneDeviceStrat"),
    ):
        DynamicEmbedding(4).build()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    gradients = tape.gradient(loss, layer.trainable_weights)
    with pytest.raises(ValueError, match="changes in fit and train_on_batch alone"):
        model.optimizer.apply(gradients, layer.trainable_weights)


@pytest.mark.parametrize(
    "optimizer",
    [
        KINDS.AdamW(),
        KINDS.Ftrl(),
        KINDS.Lamb(),
        KINDS.Adam(clipnorm=1.0),
        KINDS.Adam(use_ema=True),
        KINDS.SGD(gradient_accumulation_steps=2),
        KINDS.LossScaleOptimizer(LazyAdam(weight_decay=0.1)),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_optimizers_that_change_other_rows_are_refused(optimizer):
    with pytest.raises(
        ValueError, match=r"depends on that row alone. Received: .* for t"
    ):
        check_updates_dynamic(optimizer, "table/rows")


@pytest.mark.parametrize(
    "optimizer",
    [LazyAdam(), KINDS.Adam(global_clipnorm=1.0), KINDS.AdamW(weight_decay=0.0)],
)
def test_others_are_not(optimizer):
    check_updates_dynamic(optimizer, "table/rows")


@pytest.mark.parametrize("id_dtype", [tf.int64, tf.string])
def test_initial_values_depend_on_seed_and_id_alone(id_dtype):
    spec = TableSpec("table", 64, tf.float32, id_dtype, 1, 1, None)
    ids = tf.range(1000, dtype=tf.int64)
    ids = tf.strings.as_string(ids) if id_dtype == tf.string else ids
    values = spec.initial_rows(ids).numpy()

    np.testing.assert_array_equal(spec.initial_rows(ids[7:9]), values[7:9])
    assert not np.array_equal(spec._replace(seed=2).initial_rows(ids), values)
    assert len(np.unique(values)) > 0.99 * values.size
    # The moments of a uniform distribution, in all columns.
    np.testing.assert_allclose(values.mean(0), 0.0, atol=0.006)
    np.testing.assert_allclose(values.std(0), 0.1 / 12**0.5, rtol=0.1)
    counts = np.bincount(spec.server_of(ids, 4))
    assert counts.min() > 200


def test_a_row_that_is_given_away_during_a_lookup_is_not_that_of_the_id():
    """An update frees a row between the search for its number and the read."""
    made = {}

    def make(name, value, is_trained):
        shape = [None, *value.shape[1:]] if value.shape.rank else []
        made[name] = tf.Variable(value, is_trained, shape=shape)
        return made[name]

    spec = TableSpec("table", 2, tf.float32, tf.int64, 1, 1, 1)
    rows = DynamicRows(spec, "/device:CPU:0", make)
    ids = tf.constant([5], tf.int64)
    rows.admit(tf.IndexedSlices(tf.ones([1, 2]), ids))
    before = rows.find(ids)[1]
    made["ids"].scatter_update(tf.IndexedSlices(ids + 1, rows.in_use()))

    assert before.numpy().tolist() == [True]
    assert rows.find(ids)[1].numpy().tolist() == [False]
