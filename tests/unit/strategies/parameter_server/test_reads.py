import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.reads import Reads


@pytest.fixture
def version():
    return tf.Variable(7, dtype=tf.int64)


def traced(reads, compute):
    """Trace something that is given the version and what may be read."""

    def step():
        version, _ = reads.begin()
        return compute(version, reads.value)

    function = tf.function(step, autograph=False).get_concrete_function()
    reads.end(function)
    return function


def caller_of(reads, function, times=1):
    """Return a function that calls another as often as told, as workers do."""

    def call():
        results = []
        for _ in range(times):
            with reads.made():
                results.append(function())
        return results

    return tf.function(call, autograph=False).get_concrete_function()


def reading_nodes(concrete):
    graph = concrete.graph.as_graph_def()
    found = [graph.node, *(function.node_def for function in graph.library.function)]
    return [[n.op for n in nodes].count("ReadVariableOp") for nodes in found]


def test_a_step_is_called_with_what_the_variables_hold_by_then(version):
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([[3]])
    reads = Reads(version)
    step = traced(reads, lambda v, value: (v, value(a), value(b), value(a)))
    call = caller_of(reads, step)
    for add in (0, 1):
        version.assign_add(add)
        a.assign_add([add, add])
        found = call()[0]
        assert int(found[0]) == 7 + add
        for one in (found[1], found[3]):
            assert one.numpy().tolist() == [1.0 + add, 2.0 + add]
        assert found[2].numpy().tolist() == [[3]]


def test_each_variable_is_read_once_outside_of_the_step(version):
    a, b = tf.Variable(1.0), tf.Variable(2.0)
    reads = Reads(version)
    call = caller_of(reads, traced(reads, lambda v, value: value(a) * value(b)))

    assert sorted(reading_nodes(call)) == [0, 3]
    assert float(call()[0]) == 2.0


def test_what_is_not_read_does_not_travel(version):
    a, large = tf.Variable(1.0), tf.Variable(np.zeros((1000, 1000), "float32"))
    reads = Reads(version)
    call = caller_of(reads, traced(reads, lambda v, value: value(a)))

    assert large.handle is not None
    assert all(large.handle is not captured for captured in call.captured_inputs)


def test_a_large_variable_travels_beside_the_small_ones(version):
    small, large = tf.Variable([1.0]), tf.Variable(np.ones((1024, 1024), "float32"))
    reads = Reads(version)
    step = traced(
        reads, lambda v, value: (v, value(small), tf.reduce_sum(value(large)))
    )
    found = caller_of(reads, step)()[0]

    assert [one.numpy().item() for one in found] == [7, 1.0, 2.0**20]


def test_every_variable_is_read_after_the_version(version):
    a = tf.Variable(2.0)
    reads = Reads(version)
    call = caller_of(reads, traced(reads, lambda v, value: value(a)))
    first, second = [
        op for op in call.graph.get_operations() if op.type == "ReadVariableOp"
    ]

    assert first.inputs[0].dtype == tf.resource
    # The value of the version goes through an identity.
    after = {op.name for op in second.control_inputs}
    assert after & {first.name, *(t.consumers()[0].name for t in first.outputs)}


def test_gradients_flow_through_what_was_read(version):
    a = tf.Variable(3.0)
    reads = Reads(version)

    def compute(_, value):
        read = value(a)
        with tf.GradientTape() as tape:
            tape.watch(read)
            square = read**2
        return tape.gradient(square, read)

    assert float(caller_of(reads, traced(reads, compute))()[0]) == 6.0


def test_a_step_can_be_called_by_several_functions_and_more_than_once(version):
    a = tf.Variable(1.0)
    reads = Reads(version)
    step = traced(reads, lambda v, value: value(a) + 1.0)

    assert [float(one) for one in caller_of(reads, step, times=3)()] == [2.0] * 3
    assert [float(one) for one in caller_of(reads, step)()] == [2.0]
