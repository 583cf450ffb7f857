"""Arithmetic that turns clock readings into the figures of a benchmark."""

import statistics
from collections.abc import Mapping, Sequence

# The seconds of the steps of one process, by block.
Blocks = Sequence[Sequence[float]]
# The seconds of each call on each rank, by the name of the function that was called.
Calls = Sequence[Mapping[str, Sequence[float]]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles, which outliers do not move.

    Example:
        >>> spread([4.0, 1.0, 2.0, 3.0, 9.0])
        {'median': 3.0, 'low': 2.0, 'high': 4.0}
    """
    if len(values) == 1:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def ratio(
    numerators: Sequence[float], denominators: Sequence[float]
) -> dict[str, float]:
    """Return the spread of the quotients, taken pair by pair.

    Example:
        >>> ratio([2.0, 6.0], [1.0, 3.0])["median"]
        2.0
    """
    pairs = zip(numerators, denominators, strict=True)
    return spread([numerator / denominator for numerator, denominator in pairs])


def seconds_by_call(by_rank: Calls, name: str) -> list[float]:
    """Return the duration of each call, which ends when the last rank has its result.

    Example:
        >>> seconds_by_call([{"sum": [1.0, 2.0]}, {"sum": [3.0, 1.0]}], "sum")
        [3.0, 2.0]
    """
    return [max(calls) for calls in zip(*(rank[name] for rank in by_rank), strict=True)]


def seconds_by_round(ranks: Sequence[Blocks]) -> list[float]:
    """Return the median step of each block, on the slowest rank.

    Example:
        >>> seconds_by_round([[[1.0, 2.0, 9.0]], [[3.0, 3.0, 3.0]]])
        [3.0]
    """
    medians = [[statistics.median(block) for block in blocks] for blocks in ranks]
    return [max(of_round) for of_round in zip(*medians, strict=True)]


def medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each of several lists."""
    return {name: statistics.median(each) for name, each in values.items()}
