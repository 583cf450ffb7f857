"""Owners of weights: shares of about the same size, one for each rank."""

import heapq
import itertools
from collections.abc import Collection, Sequence

# In place of the owner of a weight: each rank owns some of its rows.
DIVIDED = -1


def assign_owners(
    sizes_bytes: Sequence[int], ranks: int, divisible: Collection[int] = ()
) -> list[int]:
    """Assign weights to ranks, so that each rank owns about as many bytes.

    A weight at a position of `divisible` is `DIVIDED` if it is larger than its share.
    """
    share = sum(sizes_bytes) / ranks
    # Largest first, to the rank with the fewest bytes (Graham 1969).
    owned = [(0, rank) for rank in range(ranks)]
    owners = [DIVIDED] * len(sizes_bytes)
    for i in sorted(range(len(sizes_bytes)), key=lambda i: (-sizes_bytes[i], i)):
        if sizes_bytes[i] <= share or i not in divisible:
            fewest, owners[i] = owned[0]
            heapq.heapreplace(owned, (fewest + sizes_bytes[i], owners[i]))
    return owners


def rows_by_rank(rows: int, ranks: int) -> list[slice]:
    """Divide the rows of a weight evenly among the ranks."""
    stops = [rows * rank // ranks for rank in range(ranks + 1)]
    return [slice(*pair) for pair in itertools.pairwise(stops)]
