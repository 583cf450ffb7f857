import numpy as np
import tensorflow as tf

from tfdist.training.predictions import gather_rows, join_rows


def gathered(on_ranks, make, size=2):
    """Gather what each rank made, and return what each got."""
    return on_ranks(size, lambda c: gather_rows(make(c.rank), c))


def test_rows_are_joined_in_the_order_of_ranks(on_ranks):
    parts = [np.ones((1, 2)), np.full((3, 2), 2.0), np.zeros((0, 2))]

    for found in gathered(on_ranks, lambda rank: tf.constant(parts[rank]), size=3):
        np.testing.assert_array_equal(found, np.concatenate(parts))


def test_a_structure_stays_what_it_is(on_ranks):
    def make(rank):
        rows = tf.range(rank + 1)
        return {"a": rows, "b": (rows * 10, [rows + 100])}

    for found in gathered(on_ranks, make):
        assert found["a"].numpy().tolist() == [0, 0, 1]
        assert found["b"][0].numpy().tolist() == [0, 0, 10]
        assert found["b"][1][0].numpy().tolist() == [100, 100, 101]


def test_ragged_rows_are_joined(on_ranks):
    parts = [[[1], [2, 3]], [[], [4, 5, 6], [7]]]

    for found in gathered(
        on_ranks, lambda rank: tf.ragged.constant(parts[rank], tf.int32)
    ):
        assert found.to_list() == [[1], [2, 3], [], [4, 5, 6], [7]]


def test_rows_that_are_ragged_twice_are_joined(on_ranks):
    parts = [[[[1, 2], []], []], [[[3]], [[4], [5, 6]]]]

    for found in gathered(on_ranks, lambda rank: tf.ragged.constant(parts[rank])):
        assert found.ragged_rank == 2
        assert found.to_list() == [[[1, 2], []], [], [[3]], [[4], [5, 6]]]


def test_a_rank_may_have_no_ragged_rows(on_ranks):
    def make(rank):
        whole = tf.ragged.constant([[1.0], [2.0, 3.0]])
        return whole[:0] if rank == 0 else whole

    for found in gathered(on_ranks, make):
        assert found.to_list() == [[1.0], [2.0, 3.0]]


def test_in_a_graph_each_part_has_a_name_of_its_own():
    names = []

    class Alone:
        def all_gather(self, tensor, *, name):
            names.append(name)
            return tensor

    @tf.function
    def predict(x):
        return gather_rows((x, x), Alone())

    predict(tf.ones([2, 1]))

    assert len(set(names)) == 2
    assert all(name.startswith("predictions") for name in names)


def test_rows_of_devices_are_joined_in_their_order():
    one = {"x": tf.constant([[1.0]]), "y": tf.ragged.constant([[1.0]])}
    other = {"x": tf.constant([[2.0], [3.0]]), "y": tf.ragged.constant([[], [2.0]])}

    joined = join_rows([one, other])

    assert joined["x"].numpy().tolist() == [[1.0], [2.0], [3.0]]
    assert joined["y"].to_list() == [[1.0], [], [2.0]]
