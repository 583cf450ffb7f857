"""Tensors of any shape go as flat ones, here between two ranks with the same values."""

import numpy as np
import tensorflow as tf

from tfdist.collectives.tensorflow import FlatCollective


class Ops:
    """Moves flat tensors between two equal ranks; notes what it was given."""

    def __init__(self):
        self.given = []

    def reduce(self, flat, reduction, name):
        self.given.append((name, flat.shape.rank, int(tf.size(flat))))
        return flat * 2 if reduction in ("sum", "mean") else flat

    def gather(self, flat, name):
        self.given.append((name, flat.shape.rank, int(tf.size(flat))))
        return tf.stack([flat, flat])

    def broadcast(self, flat, root_rank, name):
        self.given.append((name, flat.shape.rank, int(tf.size(flat))))
        return flat


class Moves(FlatCollective):
    rank, size = 0, 2

    def __init__(self):
        self._ops = Ops()

    exchange = barrier = call = None


Moves.__abstractmethods__ = frozenset()
MATRIX = np.arange(6.0).reshape(2, 3)


def test_tensors_of_one_type_are_one_flat_tensor_on_the_way():
    moves = Moves()

    one, other = moves.all_reduce([MATRIX, 1.0 + MATRIX[0]], name="x")

    assert moves._ops.given == [("x", 1, 9)]
    np.testing.assert_array_equal(one, MATRIX * 2)
    np.testing.assert_array_equal(other, (1.0 + MATRIX[0]) * 2)


def test_rows_are_padded_to_one_number_and_cut_again():
    moves = Moves()

    rows = moves.all_gather(MATRIX, name="x")

    np.testing.assert_array_equal(rows, np.concatenate([MATRIX, MATRIX]))
    assert [name for name, *_ in moves._ops.given] == ["x/rows", "x"]


def test_what_is_broadcast_keeps_its_shape():
    (value,) = Moves().broadcast([MATRIX], name="x")

    np.testing.assert_array_equal(value, MATRIX)
