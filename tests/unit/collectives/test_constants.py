import pytest
import tensorflow as tf

from tfdist.collectives.wire_format import may_be_constant, prevent_constant_folding


def asked(make):
    """Return what `may_be_constant` says of what a function makes in its graph."""
    answers = []

    @tf.function
    def traced(argument):
        answers.append(may_be_constant(make(argument)))
        return argument

    traced.get_concrete_function(tf.TensorSpec([None, 3]))
    return answers[-1]


# A small one would be copied into the graph.
EAGER = tf.ones([10_000])
VARIABLE = tf.Variable([1.0])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: tf.constant(1.0), True),
        (lambda x: tf.reduce_sum(tf.ones([2, 2]) * 3.0), True),
        # Another graph may call the function with a constant.
        (lambda x: tf.constant(2.0) * tf.reduce_sum(x), True),
        (lambda x: EAGER * 2.0, False),
        (lambda x: VARIABLE * 2.0, False),
        (lambda x: tf.constant([1.0]) + VARIABLE, False),
        (lambda x: tf.random.normal([2]), False),
    ],
)
def test_what_depends_on_constants_only_may_be_one(make, expected):
    assert asked(make) is expected


def test_what_an_inner_function_captures_is_looked_up_outside():
    found = {}

    @tf.function
    def traced():
        captured = {"constant": tf.constant(1.0), "variable": VARIABLE + 1.0}

        @tf.function
        def inner():
            for name, value in captured.items():
                found[name] = may_be_constant(value * 2.0)
            return 0

        return inner()

    traced()

    assert found == {"constant": True, "variable": False}


def test_only_a_possible_constant_gets_an_identity():
    @tf.function
    def traced():
        of_variable = prevent_constant_folding(VARIABLE * 2.0)
        return of_variable, prevent_constant_folding(tf.constant([1.0, 2.0]))

    graph = traced.get_concrete_function().graph
    types = [op.type for op in graph.get_operations()]
    first, second = traced()

    assert types.count("DebugIdentityV2") == 1
    assert first.numpy().tolist() == [2.0]
    assert second.numpy().tolist() == [1.0, 2.0]
