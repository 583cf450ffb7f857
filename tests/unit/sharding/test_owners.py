"""Owners of weights: about equal bytes, and values that are theirs on all ranks."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.sharding.assignment import (
    DIVIDED,
    assign_owners,
    rows_by_rank,
)
from tfdist.sharding.owners import WeightOwners
from tfdist.sharding.rows import join_divided, split_divided


@pytest.mark.parametrize(
    ("sizes", "ranks", "owners"),
    [
        ([], 2, []),
        ([4, 4, 4, 4], 2, [0, 1, 0, 1]),
        # 10 alone, then 6 and 3 against it, 1 to the rank with less.
        ([3, 10, 6, 1], 2, [1, 0, 1, 1]),
        ([8, 1, 1, 1], 3, [0, 1, 2, 1]),
        ([5, 7], 4, [1, 0]),
        # Weights without elements have an owner, too.
        ([0, 0], 2, [0, 0]),
    ],
)
def test_the_largest_goes_to_the_rank_with_the_fewest_bytes(sizes, ranks, owners):
    assert assign_owners(sizes, ranks) == owners


@pytest.mark.parametrize(
    ("sizes", "ranks", "divisible", "owners"),
    [
        # Larger than half, and than a third, of all.
        ([10, 60, 30], 2, {0, 1, 2}, [1, DIVIDED, 0]),
        ([10, 60, 30], 2, {0, 2}, [1, 0, 1]),
        ([40, 60, 20], 3, {0, 1, 2}, [0, DIVIDED, 1]),
        ([50, 50], 2, {0, 1}, [0, 1]),
    ],
)
def test_what_exceeds_a_share_is_divided(sizes, ranks, divisible, owners):
    assert assign_owners(sizes, ranks, divisible) == owners


@pytest.mark.parametrize(
    ("rows", "ranks", "lengths"),
    [(7, 2, [3, 4]), (8, 4, [2, 2, 2, 2]), (5, 4, [1, 1, 1, 2])],
)
def test_rows_are_divided_evenly(rows, ranks, lengths):
    by_rank = rows_by_rank(rows, ranks)

    assert [each.stop - each.start for each in by_rank] == lengths
    assert [*range(rows)] == [i for each in by_rank for i in range(rows)[each]]


def test_neighbouring_pieces_of_a_weight_have_different_owners():
    divided, whole = tf.range(7.0), tf.constant([9.0])

    parts = split_divided([divided, whole], [DIVIDED, 1], 2, part_bytes=8)

    assert [part.owner for part in parts] == [0, 1, 0, 1, 1]
    assert [part.tensor.numpy().tolist() for part in parts] == [
        [0.0, 1.0],
        [3.0, 4.0],
        [2.0],
        [5.0, 6.0],
        [9.0],
    ]
    joined = join_divided(parts)
    assert [t.numpy().tolist() for t in joined] == [[*range(7)], [9]]


# Rows of 4 MiB go in pieces.
@pytest.mark.parametrize("columns", [1, 2**20])
def test_all_ranks_get_the_rows_of_each(on_ranks, columns):
    def shared(collective):
        rows = [[10.0 * i + collective.rank] for i in range(5)]
        divided = tf.Variable(tf.tile(rows, [1, columns]))
        whole = tf.Variable([collective.rank], dtype=tf.float32)
        WeightOwners(collective).share([divided, whole], [DIVIDED, 2])
        found = divided.numpy()
        assert (found == found[:, :1]).all()
        return found[:, 0].tolist(), whole.numpy().tolist()

    assert on_ranks(3, shared) == [([0.0, 11.0, 21.0, 32.0, 42.0], [2.0])] * 3


# Parts have at most two million elements.
@pytest.mark.parametrize("columns", [2, 2**20])
def test_the_chief_reads_the_rows_of_all(on_ranks, columns):
    whole = np.arange(7.0 * columns, dtype="float32").reshape(7, columns)

    def read(collective):
        owners = WeightOwners(collective)
        variable = kept(collective.rank, DIVIDED, None)
        variable.shape = whole.shape
        variable._value = tf.Variable(whole[owners.rows(variable)])
        if collective.rank > 0:
            owners.lend([variable])
            return None
        with owners.reading([variable]):
            return owners.read(variable)

    np.testing.assert_array_equal(on_ranks(2, read)[0], whole)


def kept(rank, owner, value, path="optimizer/momentum"):
    """A variable of an optimizer, as this rank has it."""
    is_mine = rank == int(owner)
    return SimpleNamespace(
        owner=int(owner),
        _value=tf.constant(value) if is_mine else None,
        shape=(2,),
        dtype="float32",
        path=path,
    )


def test_the_others_go_on_if_the_chief_cannot_write(on_ranks):
    def read(collective):
        owners = WeightOwners(collective)
        if collective.rank > 0:
            owners.lend([])
            return "went on"
        with pytest.raises(OSError, match="full"), owners.reading([]):
            raise OSError("full")
        return None

    assert on_ranks(2, read) == [None, "went on"]


def test_a_variable_of_another_rank_cannot_be_read_alone(on_ranks):
    def read(collective):
        owners = WeightOwners(collective)
        text = (
            "With shard_optimizer=True, only the owner of a weight has the optimizer's "
            "variables of it. Received: optimizer/momentum, read on rank "
            f"{collective.rank} and kept on rank {1 - collective.rank}. Save the model "
            "on every rank, and read the file."
        )
        with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
            owners.read(kept(collective.rank, 1 - collective.rank, [0.0, 0.0]))

    on_ranks(2, read)
