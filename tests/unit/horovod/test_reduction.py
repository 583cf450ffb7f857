"""The reduction of gradients, and tapes that use it."""

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def test_a_variable_of_keras_and_its_inner_one_are_the_same(hvd):
    from tfdist.horovod.variables import key_of

    x, y = keras.Variable(0.0), keras.Variable(0.0)

    assert key_of(x) == key_of(x.value)
    assert key_of(x) != key_of(y)


def test_alone_only_local_gradients_and_types_change(hvd):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), sparse_as_dense=True)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([2, 2]))
    variables = [keras.Variable(tf.zeros([2, 2])), keras.Variable(0.0)]
    dense, nothing = optimizer.reduction.reduce([slices, None], variables, frozenset())

    assert dense.numpy().tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert nothing is None


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, [[2], [1], [0]]),
        (1, [[2, 1, 0]]),
        (9, [[2], [1], [0]]),
        ([["c", "a"]], [[2, 0], [1]]),
        # Those of another optimizer.
        ([["x"], ["a", "y"]], [[2], [1], [0]]),
        ([], [[2], [1], [0]]),
    ],
)
def test_each_gradient_is_in_one_group(hvd, groups, expected):
    from dataclasses import replace

    reduction = hvd.DistributedGradientTape(tf.GradientTape())._reduction
    reduction = type(reduction)(replace(reduction.options, groups=groups))

    assert reduction.plan("abc") == expected


def test_a_wrapped_tape_records_and_watches_as_its_tape(hvd):
    x = tf.constant(3.0)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        tape.watch(x)
        loss = x * x
    structure = tape.gradient(loss, {"x": x, "unused": tf.constant(1.0)})

    assert float(tape.gradient(loss, x)) == 6.0
    assert float(structure["x"]) == 6.0
    assert structure["unused"] is None


def test_gradients_of_embeddings_stay_sparse(hvd):
    layer = keras.layers.Embedding(4, 2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1, 3])))
    [gradient] = hvd.DistributedGradientTape(tape).gradient(
        loss, layer.trainable_weights
    )

    assert gradient.indices.numpy().tolist() == [1, 3]


def test_arguments_are_checked(hvd):
    with pytest.raises(ValueError, match="op must be Average, Sum or Adasum"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Max)
    with pytest.raises(ValueError, match="local_layers must be Keras layers that have"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=3)


def test_names_are_generic_whether_asked_for_or_not(hvd):
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = x * x

    wrapped = hvd.DistributedGradientTape(tape)
    assert float(wrapped.gradient(loss, x, use_generic_names=True)) == 6.0


def test_tapes_of_equal_options_share_what_is_compiled(hvd):
    def reduction(**options):
        return hvd.DistributedGradientTape(tf.GradientTape(), **options)._reduction

    x = tf.Variable(1.0)

    assert reduction() is reduction()
    assert reduction(groups=2) is reduction(groups=2) is not reduction()
    assert reduction(groups=[[x]]) is not reduction(groups=[[x]])
    assert not reduction().options.ties_ranks
