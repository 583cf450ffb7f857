"""Checks and names of collectives."""

import re

import pytest
import tensorflow as tf

from tfdist.collectives.base import name_in_graph
from tfdist.collectives.single import SingleCollective

SLICES = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda one: one.all_reduce([1.0], "average", name="x"),
            ValueError,
            "reduction must be one of sum, mean, min, max. Received: "
            "reduction='average'. Use 'sum' to add over the ranks.",
        ),
        (
            lambda one: one.all_reduce([1.0, "a"], name="x"),
            TypeError,
            "all_reduce needs tensors of a number type for 'sum'. Received: string. "
            "Cast the tensor first.",
        ),
        (
            lambda one: one.all_reduce([True], "mean", name="x"),
            TypeError,
            "number type for 'mean'. Received: bool.",
        ),
        (
            lambda one: one.all_reduce([SLICES], "max", name="x"),
            ValueError,
            "tf.IndexedSlices can be reduced by 'sum' and 'mean' only. Received: "
            "reduction='max'. Densify them with tf.convert_to_tensor.",
        ),
        (
            lambda one: one.all_gather(1.0, name="loss"),
            ValueError,
            "all_gather needs a tensor with rows. Received: a scalar ('loss'). "
            "Add a dimension, for example with tensor[tf.newaxis].",
        ),
        (
            lambda one: one.broadcast([1.0], 1, name="x"),
            ValueError,
            "root_rank must be from 0 to 0. Received: root_rank=1. Use 0 for the chi",
        ),
        (
            lambda one: one.broadcast(["a"], name="x"),
            TypeError,
            "Only tensors of numbers can be broadcast, and of numbers or strings "
            "gathered. Received: string. Turn the tensor into numbers first.",
        ),
    ],
)
def test_what_several_processes_could_not_do_is_refused_alone(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call(SingleCollective())


def names_of(function, *args):
    """Return the names that a trace of a function gives."""
    names = []
    tf.function(lambda *args: function(names, *args)).get_concrete_function(*args)
    return names


def test_in_a_graph_every_call_has_a_name_of_its_own():
    def three(names):
        names += [name_in_graph("gradients"), name_in_graph("metrics")]
        names += [name_in_graph("gradients")]

    assert names_of(three) == ["gradients", "metrics", "gradients_1"]


def test_scopes_which_may_differ_between_ranks_are_no_part_of_a_name():
    def two(names):
        for scope in ("sequential_1", "sequential_2"):
            with tf.name_scope(scope):
                names += [name_in_graph("values")]

    assert names_of(two) == ["values", "values_1"]


def test_branches_share_the_names_of_the_graph_around_them():
    def both(names, condition):
        def branch():
            names.append(name_in_graph("gradients"))
            return 0

        tf.cond(condition, branch, branch)
        branch()

    names = names_of(both, tf.TensorSpec([], tf.bool))

    assert len(set(names)) == len(names) == 3
    assert names_of(both, tf.TensorSpec([], tf.bool)) == names


def test_functions_within_functions_share_names():
    def outer(names):
        inner = tf.function(lambda: names.append(name_in_graph("gradients")))
        inner()
        names.append(name_in_graph("gradients"))

    assert names_of(outer) == ["gradients", "gradients_1"]


def test_outside_of_graphs_a_name_stays():
    assert [name_in_graph("gradients") for _ in range(2)] == ["gradients"] * 2
