import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.ops import MAX_IN_FLIGHT, Throttle


def traced(count, throttle, dtype=tf.float32):
    """Trace ops that take throttle; return the function."""

    @tf.function
    def step(x):
        return [
            throttle.add(lambda number=number: tf.identity(x, name=f"op_{number}"))
            for number in range(count)
        ]

    return step.get_concrete_function(tf.TensorSpec([2], dtype))


def waited_for(graph, count):
    """Return which ops each of the ops waits for."""
    ops = [graph.get_operation_by_name(f"op_{number}") for number in range(count)]
    return [[op.name for op in its.control_inputs] for its in ops]


def wanted_order(count):
    return [
        [f"op_{number - MAX_IN_FLIGHT}"] if number >= MAX_IN_FLIGHT else []
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "count", [1, MAX_IN_FLIGHT, MAX_IN_FLIGHT + 1, 3 * MAX_IN_FLIGHT + 1]
)
def test_each_op_waits_for_the_one_so_many_before(count):
    graph = traced(count, Throttle()).graph

    assert waited_for(graph, count) == wanted_order(count)


def test_the_outputs_are_those_of_the_ops():
    outputs = traced(5, Throttle())(tf.constant([1.0, 2.0]))

    assert [output.numpy().tolist() for output in outputs] == [[1.0, 2.0]] * 5


def test_what_takes_no_turn_waits_for_nothing():
    throttle = Throttle()

    @tf.function
    def step(x):
        turned = [
            throttle.add(lambda: tf.identity(x)) for _ in range(MAX_IN_FLIGHT + 1)
        ]
        return turned, tf.identity(x, name="beside")

    graph = step.get_concrete_function(tf.TensorSpec([2])).graph

    assert graph.get_operation_by_name("beside").control_inputs == []


def test_every_graph_counts_for_itself():
    throttle, count = Throttle(), MAX_IN_FLIGHT + 1

    graphs = [
        traced(count, throttle, dtype).graph for dtype in (tf.float32, tf.float64)
    ]

    assert [waited_for(graph, count) for graph in graphs] == [wanted_order(count)] * 2


def test_a_branch_is_a_graph_of_its_own():
    throttle = Throttle()

    @tf.function
    def step(x, wanted):
        def double():
            return [throttle.add(lambda: x + x) for _ in range(MAX_IN_FLIGHT + 1)][-1]

        return double() + tf.cond(wanted, double, lambda: tf.zeros_like(x))

    x = tf.constant([1.0, 2.0])

    np.testing.assert_array_equal(step(x, tf.constant(True)), [4.0, 8.0])
    np.testing.assert_array_equal(step(x, tf.constant(False)), [2.0, 4.0])


def test_a_graph_is_not_kept_alive():
    throttle = Throttle()

    def trace():
        graph = traced(MAX_IN_FLIGHT + 1, throttle).graph
        assert len(throttle._in_flight) == 1
        return weakref.ref(graph)

    graph = trace()
    gc.collect()

    assert graph() is None
    assert len(throttle._in_flight) == 0
