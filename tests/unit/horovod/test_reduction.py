"""The reduction of gradients, and tapes that use it."""

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def test_a_wrapped_tape_records_and_watches_as_its_tape(hvd):
    x = tf.constant(3.0)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        tape.watch(x)
        loss = x * x
    unused = tf.constant(1.0)
    structure = tape.gradient(loss, {"x": x, "unused": unused}, use_generic_names=True)

    assert float(tape.gradient(loss, x)) == 6.0
    assert float(structure["x"]) == 6.0
    assert structure["unused"] is None


@pytest.mark.parametrize("is_dense", [False, True])
def test_gradients_of_embeddings_stay_sparse_unless_told_otherwise(hvd, is_dense):
    layer = keras.layers.Embedding(4, 1)
    with tf.GradientTape() as recorder:
        loss = tf.reduce_sum(layer(tf.constant([1, 3])))
    tape = hvd.DistributedGradientTape(recorder, sparse_as_dense=is_dense)
    [gradient] = tape.gradient(loss, layer.trainable_weights)

    assert isinstance(gradient, tf.IndexedSlices) is not is_dense
    assert tf.convert_to_tensor(gradient).numpy().ravel().tolist() == [0, 1, 0, 1]


def test_tapes_of_equal_options_share_what_is_compiled(hvd):
    def reduction(**options):
        return hvd.DistributedGradientTape(tf.GradientTape(), **options)._reduction

    x, y = tf.Variable(1.0), keras.Variable(1.0)

    assert reduction() is reduction()
    assert reduction(groups=2) is reduction(num_groups=2) is not reduction()
    assert reduction(groups=[[x, y]]) is reduction(groups=[[x, y.value]])
    assert reduction(groups=[[x]]) is not reduction(groups=[[x, y]])
    assert not reduction().options.ties_ranks
