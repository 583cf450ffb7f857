import tensorflow as tf

from tfdist.collectives.base import name_in_graph


def test_outside_of_graphs_a_name_stays():
    assert [name_in_graph("gradients") for _ in range(2)] == ["gradients"] * 2


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


def test_every_graph_counts_for_itself():
    def one(names):
        names += [name_in_graph("gradients")]

    assert names_of(one) == names_of(one) == ["gradients"]


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


def test_loops_share_the_names_of_the_graph_around_them():
    def loop(names):
        def body(i):
            names.append(name_in_graph("gradients"))
            return i + 1

        tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
        names.append(name_in_graph("gradients"))

    names = names_of(loop)

    assert len(set(names)) == len(names) == 2
    assert names_of(loop) == names


def test_functions_within_functions_share_names():
    def outer(names):
        inner = tf.function(lambda: names.append(name_in_graph("gradients")))
        inner()
        names.append(name_in_graph("gradients"))

    assert names_of(outer) == ["gradients", "gradients_1"]
