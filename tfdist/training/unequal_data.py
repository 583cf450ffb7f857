"""Errors of ranks that do not have the same data."""

import statistics
from collections.abc import Sequence

from tfdist.cluster.launcher import Launcher
from tfdist.compat.keras.input import Given

# What ranks have that read other rows, and its remedy.
_REMEDIES = {
    Given.ARRAYS: (
        "arrays with other rows, or in another order, on each rank",
        "Draw, shuffle and split them alike on every rank: "
        "train_test_split(..., random_state=1), numpy.random.default_rng(1), or "
        "keras.utils.set_random_seed(1) before all of it.",
    ),
    Given.DATASET: (
        "a dataset that is shuffled, filtered or sharded in another way on each rank",
        "Make it after the strategy, which lets shuffles and random operations of a "
        "map draw alike, or give them seeds (dataset.shuffle(..., seed=1)); seed what "
        "Python code in it draws from, as by numpy.random.default_rng(1).",
    ),
    Given.BATCHES: (
        "a PyDataset, generator or loader with other rows, or in another order, on "
        "each rank",
        "Seed what it draws from alike on every rank: numpy.random.default_rng(1) in "
        "it, or keras.utils.set_random_seed(1) at the start of the program. Do not "
        "shard it by tfdist.rank().",
    ),
}


def check_sizes(sizes: Sequence[str]) -> None:
    """Raise `RuntimeError` unless all ranks have as much data, by `size_of`."""
    other = next((r for r, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise RuntimeError(
            f"The ranks do not have the same data. Received: {sizes[0]} on rank 0, "
            f"{sizes[other]} on rank {other}. Give every rank the whole data, "
            "which the strategy shards, in the same calls of fit, evaluate and "
            "predict; or shard it yourself and pass it through "
            "strategy.distribute_datasets_from_function."
        )


def other_rows(given: Given, fingerprints: Sequence[int]) -> RuntimeError:
    """Return the error of ranks whose first batches have other fingerprints."""
    # Of three or more ranks, most are taken to be right.
    usual = statistics.mode(fingerprints)
    others = [r for r, its in enumerate(fingerprints) if its != usual]
    if len(others) == 1 and len(fingerprints) > 2:
        Launcher().note_culprit(others[0])
    received, remedy = _REMEDIES[given]
    return RuntimeError(
        "The ranks do not see the same data: the first batch of rank "
        f"{others[0]} is not that of rank {fingerprints.index(usual)}. "
        f"Received: {received}. {remedy} Or shard the data yourself, and pass "
        "it through strategy.distribute_datasets_from_function."
    )
