import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.install import install
from tfdist.compat.keras.pure_step import PureScope
from tfdist.compat.keras.sharded import ShardedValue


@pytest.fixture(autouse=True)
def patched():
    install(is_alone=True)


def graph_of(function, *args):
    """Return the concrete function of something that makes a scope of its own."""
    return tf.function(function, autograph=False).get_concrete_function(*args)


def scope_of(*zeros):
    return PureScope(lambda variable: variable.read_value(), tf.constant(0), zeros)


def nodes(concrete, op):
    """Count operations, also in the functions that are called."""
    graph = concrete.graph.as_graph_def()
    found = list(graph.node)
    for function in graph.library.function:
        found += function.node_def
    return sum(node.op == op for node in found)


# Reading.


def gradients(function, variables, *, plain):
    """Return the gradients of a function with a tape that Keras's steps use."""

    def compute():
        def run():
            with tf.GradientTape() as tape:
                loss = function()
            return [tf.convert_to_tensor(one) for one in tape.gradient(loss, variables)]

        if plain:
            return run()
        with scope_of():
            return run()

    return [one.numpy() for one in tf.function(compute, autograph=False)()]


def in_a_branch(a, b):
    return tf.cond(a * 1.0 > 0.0, lambda: a * b * b, lambda: b * 1.0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: a * a * b + a, [13.0, 4.0]),
        (lambda a, b: a.value * tf.convert_to_tensor(b), [3.0, 2.0]),
        (in_a_branch, [9.0, 12.0]),
        (lambda a, b: a * b + in_a_branch(a, b), [12.0, 14.0]),
    ],
)
def test_gradients_are_those_of_plain_reading(function, expected):
    a, b = keras.Variable(2.0), keras.Variable(3.0)

    for plain in (True, False):
        found = gradients(lambda: function(a, b), [a, b], plain=plain)
        assert found == expected


# Assigning.


def test_what_is_assigned_is_kept_and_the_variables_do_not_change():
    a, b, c = (keras.Variable(float(i)) for i in (1, 2, 3))

    def compute():
        with scope_of() as scope:
            b.assign(10.0)
            a.assign_add(5.0)
            b.assign(b + 1.0)
            assert [id(v) for v in scope.assigned] == [id(b), id(a)]
            assert [scope.is_assigned(v) for v in (a, b, c)] == [True, True, False]
            return (
                [scope.get_current_value(v) for v in (a, b, c)],
                [scope.before(v) for v in (a, b, c)],
            )

    after, before = tf.function(compute, autograph=False)()
    assert [float(one) for one in after] == [6.0, 11.0, 3.0]
    assert [float(one) for one in before] == [1.0, 2.0, 3.0]
    assert [float(one.numpy()) for one in (a, b, c)] == [1.0, 2.0, 3.0]


# Lookups.


def embedding(**options):
    layer = keras.layers.Embedding(5, 2, **options)
    layer.build(())
    layer.set_weights([np.arange(10.0).reshape(5, 2)])
    return layer


def looked_up(layer, indices, *, plain=False):
    def compute():
        def run():
            with tf.GradientTape() as tape:
                rows = layer(indices)
                loss = tf.reduce_sum(rows * rows)
            return rows, tape.gradient(loss, layer.trainable_variables[0])

        if plain:
            return run()
        with scope_of():
            return run()

    return graph_of(compute)


INDICES = [
    np.array([0, 4, 4], "int32"),
    np.array([-1, -5, 2], "int32"),
    np.array([0.0, 3.0], "float32"),
]


def test_a_table_that_the_step_has_assigned_is_taken_from_the_step():
    layer = embedding()

    def compute():
        with scope_of():
            layer.embeddings.assign(tf.ones((5, 2)))
            return layer(np.array([1, 2]))

    assert tf.function(compute, autograph=False)().numpy().tolist() == [[1.0, 1.0]] * 2
    assert layer.get_weights()[0][1].tolist() == [2.0, 3.0]


# Shards.


def cut(layer):
    """Cut the table of a layer into shards of two and three rows."""
    table = layer.embeddings
    rows = table.numpy()
    table._value = ShardedValue([tf.Variable(rows[:2]), tf.Variable(rows[2:])])
    return layer


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("indices", INDICES, ids=str)
def test_a_lookup_is_keras_s_own_and_moves_only_its_rows(indices, shards):
    expected, expected_gradient = looked_up(embedding(), indices, plain=True)()
    pure = looked_up(embedding() if shards == 1 else cut(embedding()), indices)
    rows, gradient = pure()

    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(
        tf.convert_to_tensor(gradient), tf.convert_to_tensor(expected_gradient)
    )
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.values.shape.num_elements() == 2 * indices.size
    assert nodes(pure, "ResourceGather") == shards
    assert nodes(pure, "ReadVariableOp") == 0


def test_shards_are_read_once_as_a_whole_with_one_gradient():
    table = cut(embedding()).embeddings

    def compute():
        with scope_of(), tf.GradientTape() as tape:
            loss = tf.reduce_sum(table * table) + table[4, 1]
            return loss, tape.gradient(loss, table)

    concrete = graph_of(compute)
    loss, gradient = concrete()
    assert nodes(concrete, "ReadVariableOp") == 2
    expected = 2.0 * np.arange(10.0).reshape(5, 2)
    expected[4, 1] += 1.0
    assert float(loss) == 285.0 + 9.0
    np.testing.assert_array_equal(gradient, expected)


def test_a_lookup_in_a_branch_has_its_gradient():
    layer = cut(embedding())

    def compute(positive):
        with scope_of(), tf.GradientTape() as tape:
            rows = tf.cond(
                positive, lambda: layer(np.array([1, 4])), lambda: tf.zeros((2, 2))
            )
            loss = tf.reduce_sum(rows)
            return loss, tape.gradient(loss, layer.embeddings)

    concrete = graph_of(compute, tf.TensorSpec((), tf.bool))
    loss, gradient = concrete(tf.constant(True))
    expected = np.zeros((5, 2))
    expected[[1, 4]] = 1.0
    assert float(loss) == 2.0 + 3.0 + 8.0 + 9.0
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)
