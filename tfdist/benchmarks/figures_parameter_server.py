"""From what epochs have taken to the figures of the parameter-server benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tfdist.benchmarks.figures import spread

# What each epoch has taken, as `EpochMeter.epochs` gives it.
Epochs = Sequence[Mapping[str, Any]]


def speed_figures(
    steps: int, reports: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Work out how fast jobs train that have taken turns, and at what cost.

    A ratio is taken within each round of turns, which followed each other in seconds;
    the figure is the median over the rounds.

    Args:
        steps: Steps of an epoch.
        reports: What the chief of each job has reported, by the name of the job; that
            of tfdist is "tfdist".

    Returns:
        By job, steps per second, seconds of processors and bytes of a step, each a
        `Spread`; by other job, the speed and the thrift of tfdist against it: how many
        times as many steps it makes in a second, and in a second of processors; and the
        staleness of its updates.
    """
    ours = reports["tfdist"]["epochs"]
    others = {name: one["epochs"] for name, one in reports.items() if name != "tfdist"}
    return {
        "jobs": {
            name: _figures_of(steps, report["epochs"])
            for name, report in reports.items()
        },
        "speed_against": {
            name: _ratios(theirs, ours, "seconds") for name, theirs in others.items()
        },
        "thrift_against": {
            name: _ratios(theirs, ours, "processor_seconds")
            for name, theirs in others.items()
        },
        "staleness": staleness_figures(reports["tfdist"]["staleness"]),
    }


def staleness_figures(counts: Mapping[Any, int]) -> dict[str, Any]:
    """Summarise how many updates gradients have missed.

    Args:
        counts: How often, by the number of missed updates, which JSON makes a string.

    Returns:
        The histogram, its median, what 99 % do not exceed, and the largest.

    Example:
        >>> staleness_figures({"0": 1, "2": 3})["median"]
        2
    """
    histogram = {int(missed): count for missed, count in counts.items()}
    return {
        "histogram": histogram,
        "median": _quantile(histogram, 0.5),
        "percentile_99": _quantile(histogram, 0.99),
        "largest": max(histogram, default=0),
    }


def kept_speed_figures(
    steps: int, reports: Mapping[str, Epochs], whole: str
) -> dict[str, Any]:
    """Work out how much of the speed of some jobs another one has.

    Args:
        steps: Steps of an epoch.
        reports: What each epoch has taken, by the name of the job.
        whole: The job that is compared with the sum of the others.

    Returns:
        Steps per second of each job, and the "kept_speed", each a `Spread`.
    """
    speeds = {
        name: [steps / epoch["seconds"] for epoch in epochs]
        for name, epochs in reports.items()
    }
    parts = (values for name, values in speeds.items() if name != whole)
    sums = [sum(each) for each in zip(*parts, strict=True)]
    kept = [own / of_all for own, of_all in zip(speeds[whole], sums, strict=True)]
    return {
        "steps_per_second": {
            name: asdict(spread(values)) for name, values in speeds.items()
        },
        "kept_speed": asdict(spread(kept)),
    }


def bytes_figures(steps: int, epochs: Epochs, touched_bytes: int) -> dict[str, Any]:
    """Work out what travels in a step, beside the rows of a table that it touches.

    Args:
        steps: Steps of an epoch.
        epochs: What each has taken.
        touched_bytes: Bytes of the rows that a step touches.

    Returns:
        The bytes of a step, the median over the epochs, alone and as a multiple of
        those of the rows; None where they cannot be counted.
    """
    sent = _figures_of(steps, epochs)["bytes_per_step"]
    median = None if sent is None else sent["median"]
    return {
        "bytes_per_step": median,
        "touched_bytes": touched_bytes,
        "times_touched": None if median is None else median / touched_bytes,
    }


def _figures_of(steps: int, epochs: Epochs) -> dict[str, Any]:
    """Work out the figures of one job."""
    sent = [epoch["sent_bytes"] for epoch in epochs]
    is_counted = None not in sent
    return {
        "steps_per_second": asdict(
            spread([steps / epoch["seconds"] for epoch in epochs])
        ),
        "processor_seconds_per_step": asdict(
            spread([epoch["processor_seconds"] / steps for epoch in epochs])
        ),
        "bytes_per_step": (
            asdict(spread([count / steps for count in sent])) if is_counted else None
        ),
    }


def _ratios(theirs: Epochs, ours: Epochs, what: str) -> dict[str, float]:
    """Return how many times as much others have taken as we have."""
    pairs = zip(theirs, ours, strict=True)
    return asdict(spread([their[what] / our[what] for their, our in pairs]))


def _quantile(histogram: Mapping[int, int], share: float) -> int:
    """Return the smallest value that a share of all do not exceed."""
    total = sum(histogram.values())
    so_far = 0
    for value in sorted(histogram):
        so_far += histogram[value]
        if so_far >= share * total:
            return value
    return 0
