"""Owners of weights: about equal bytes, and values that are theirs on all ranks."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients import WeightOwners
from tfdist.gradients.owners import assign_owners


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


def test_many_weights_are_balanced():
    sizes = np.random.default_rng(1).integers(1, 1000, 60).tolist()
    owned = [0, 0, 0]
    for size, owner in zip(sizes, assign_owners(sizes, 3), strict=True):
        owned[owner] += size

    # The difference is at most that of the smallest weights.
    assert max(owned) - min(owned) < 0.02 * sum(sizes)


def test_all_ranks_get_the_owners_values(on_ranks):
    def shared(collective):
        weights = [
            tf.Variable(tf.fill([2], 10.0 * i + collective.rank)) for i in range(3)
        ]
        weights.append(tf.Variable([collective.rank], dtype=tf.float64))
        WeightOwners(collective).share(weights, [1, 0, 1, 1])
        return [weight.numpy().tolist() for weight in weights]

    values = [[1.0, 1.0], [10.0, 10.0], [21.0, 21.0], [1.0]]
    assert on_ranks(2, shared) == [values, values]


def kept(rank, owner, value, path="optimizer/momentum"):
    """A variable of an optimizer, as this rank has it."""
    is_mine = rank == int(owner)
    return SimpleNamespace(
        _tfdist_owner=int(owner),
        _value=tf.constant(value) if is_mine else None,
        shape=(2,),
        dtype="float32",
        path=path,
    )


def test_the_chief_reads_what_others_lend(on_ranks):
    def read(collective):
        owners = WeightOwners(collective)
        variables = [
            kept(collective.rank, owner, [owner, i])
            for i, owner in enumerate([0.0, 1.0, 2.0, 1.0])
        ]
        if collective.rank > 0:
            owners.lend(variables)
            return None
        with owners.reading(variables), owners.reading(variables):
            return [owners.read(variables[i]).numpy().tolist() for i in (3, 1, 2)]

    assert on_ranks(3, read)[0] == [[1.0, 3.0], [1.0, 1.0], [2.0, 2.0]]


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
