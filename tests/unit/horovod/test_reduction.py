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
