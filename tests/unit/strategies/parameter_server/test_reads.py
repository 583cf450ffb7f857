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
            with reads.reading():
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
    seen, ahead = set(), [second]
    while ahead:
        op = ahead.pop()
        if op.name not in seen:
            seen.add(op.name)
            ahead += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]

    assert first.name in seen


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.Variable(["a", "b"]),
        lambda: tf.Variable([True, False]),
        lambda: tf.Variable([2**32 - 1, 0], dtype=tf.uint32),
        lambda: tf.Variable(tf.zeros([0, 3])),
    ],
    ids=["strings", "bool", "uint32", "empty"],
)
def test_variables_of_any_type_are_read(version, make):
    other, small = make(), tf.Variable([1.0])
    reads = Reads(version)
    step = traced(reads, lambda v, value: (value(small), value(other)))
    found = caller_of(reads, step)()[0][1]

    assert (found.dtype, found.shape) == (other.dtype, other.shape)
    assert np.array_equal(found.numpy(), other.numpy())


@pytest.mark.parametrize("place", [0, 1])
def test_variables_of_several_devices_are_read(place):
    devices = [f"/device:CPU:{number}" for number in range(2)]
    with tf.device(devices[place]):
        version = tf.Variable(7, dtype=tf.int64)
    variables = []
    for number in range(4):
        with tf.device(devices[number % 2]):
            variables.append(tf.Variable(float(number)))
    reads = Reads(version)
    step = traced(reads, lambda v, value: (v, *map(value, variables)))
    found = caller_of(reads, step)()[0]

    assert [one.numpy().item() for one in found] == [7, 0.0, 1.0, 2.0, 3.0]


def test_a_step_is_traced_again_from_the_beginning(version):
    """As TensorFlow does if the first trace has made a variable."""
    a, b, made = tf.Variable(1.0), tf.Variable(2.0), []
    reads = Reads(version)

    def compute(_, value):
        if not made:
            made.append(tf.Variable(0.0))
            return value(b) + value(a)
        return value(a)

    call = caller_of(reads, traced(reads, compute))

    assert float(call()[0]) == 1.0
    assert sorted(reading_nodes(call)) == [0, 2]


def test_what_is_read_in_a_branch_is_there(version):
    a = tf.Variable(3.0)
    reads = Reads(version)

    def compute(v, value):
        return tf.cond(v > 0, lambda: v, lambda: v + 1), value(a)

    assert float(caller_of(reads, traced(reads, compute))()[0][1]) == 3.0


def test_a_step_is_called_within_a_reading_only(version):
    reads = Reads(version)
    step = traced(reads, lambda v, value: v)
    with pytest.raises(AssertionError, match="must be set around each call"):
        step()


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
