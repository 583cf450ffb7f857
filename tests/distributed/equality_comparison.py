"""The equality matrix: comparing what rows end with."""

import hashlib
import pickle

import numpy as np


def differing_bits(outcomes, outcome_of_one=None):
    """Say where ranks differ that must not.

    Args:
        outcomes: What each rank ended with, by rank.
        outcome_of_one: What one process did, if its bits are to be those of all ranks.

    Returns:
        A line for each leaf of each rank that is not, to the bit, that of one process,
        or else of rank 0.
    """
    who = "rank 0" if outcome_of_one is None else "one process"
    right = _bits_of(outcomes[0] if outcome_of_one is None else outcome_of_one)
    by_rank = [_bits_of(outcome) for outcome in outcomes]
    return [
        f"rank {rank} has other bits than {who} in {path}"
        for rank, theirs in enumerate(by_rank)
        for path in sorted(right.keys() | theirs.keys())
        if right.get(path) != theirs.get(path)
    ]


def differences(outcome, outcome_of_one, tolerance):
    """Say where what a row ended with is not what it ended with on one process.

    Args:
        outcome: What a rank ended with.
        outcome_of_one: What plain Keras did.
        tolerance: How much floats may differ, relative to the largest of their array.

    Returns:
        A line for each leaf that differs.
    """
    flat, right = _not_agreed(outcome), _not_agreed(outcome_of_one)
    found = [f"{path} is on one side only" for path in flat.keys() ^ right.keys()]
    for path in sorted(flat.keys() & right.keys()):
        one, other = flat[path], right[path]
        if one.shape != other.shape:
            found.append(f"{path}: {one.shape}, and {other.shape} on one process")
        elif one.dtype.kind in "fc":
            # Rounding of a value near zero is relative to what it is a sum of.
            largest = np.abs(other[np.isfinite(other)]).max(initial=0.0)
            floor = tolerance * max(1e-3, float(largest))
            if not np.allclose(one, other, tolerance, floor, equal_nan=True):
                found.append(f"{path}: {_largest_difference(one, other)}")
        elif not np.array_equal(one, other):
            found.append(f"{path}: {one}, and {other} on one process")
    return found


def _bits_of(outcome):
    """Return a text for each leaf that ranks must agree on, by path."""
    return {path: _bits(value) for path, value in _shared(outcome).items()}


def _bits(value):
    """Return a text for type, shape and all bits of an array."""
    array = np.ascontiguousarray(value)
    content = array.tobytes() if array.dtype != object else pickle.dumps(array.tolist())
    return f"{array.dtype} {array.shape} {hashlib.sha256(content).hexdigest()}"


def _shared(outcome):
    """Return what ranks must agree on, flat, by path."""
    return _flat({key: outcome[key] for key in outcome if key != "by_rank"})


def _not_agreed(outcome):
    """Return what one process must end with too, flat, by path."""
    flat = _shared(outcome)
    return {path: flat[path] for path in flat if not path.startswith("/agreed")}


def _flat(value, path=""):
    """Return the leaves of dictionaries, lists and tuples by their paths."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {path: np.asarray(value)}
    leaves = {}
    for key, inner in items:
        leaves.update(_flat(inner, f"{path}/{key}"))
    return leaves


def _largest_difference(one, other):
    """Show two arrays where they are farthest apart."""
    one, other = np.atleast_1d(one), np.atleast_1d(other)
    apart = np.nan_to_num(np.abs(one - other), nan=np.inf)
    apart[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    at = np.unravel_index(np.argmax(apart), one.shape)
    return f"{one[at]}, and {other[at]} on one process"
