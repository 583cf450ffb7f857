"""Arithmetic that converts clock readings to the figures of a benchmark."""

import statistics
from collections.abc import Mapping, Sequence

# The seconds of each call on each rank, by function name.
Calls = Sequence[Mapping[str, Sequence[float]]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles, which outliers do not move."""
    if len(values) == 1:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def ratio(
    numerators: Sequence[float], denominators: Sequence[float]
) -> dict[str, float]:
    """Return the spread of the quotients, taken pair by pair."""
    pairs = zip(numerators, denominators, strict=True)
    return spread([numerator / denominator for numerator, denominator in pairs])


def seconds_by_call(by_rank: Calls, name: str) -> list[float]:
    """Return the duration of each call on the slowest rank."""
    return [max(calls) for calls in zip(*(rank[name] for rank in by_rank), strict=True)]


def medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each of several lists."""
    return {name: statistics.median(each) for name, each in values.items()}
