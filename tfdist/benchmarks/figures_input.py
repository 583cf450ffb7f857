"""From clock readings to the figures of input: pure arithmetic."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tfdist.benchmarks.figures import spread

# The seconds of each pass, by the name of the pipeline.
Passes = Mapping[str, Sequence[float]]

# Steps that wait for less than this share of their time are not held up.
_WAITING_SHARE = 0.05


def input_figures(
    examples: int, epochs: int, feeding: Passes, training: Passes
) -> dict[str, Any]:
    """Work out what pipelines feed, and whether steps wait for them.

    A ratio is taken within each round; the figure is the median over the rounds.

    Args:
        examples: Of a pass.
        epochs: Passes of a run; the first of "cached" takes as long as "tfdist".
        feeding: Passes without steps, of "naive", "sequential", "tuned", "tfdist" and
            "cached".
        training: The same with a step for each batch; "none" is the steps alone.

    Returns:
        Examples per second of each, the speed of "tfdist" and of a run with a cache
        against each of the others as a `Spread`, what the steps need, and whether they
        are bound by their input.
    """
    run = [
        first + (epochs - 1) * later
        for first, later in zip(feeding["tfdist"], feeding["cached"], strict=True)
    ]
    others = ("naive", "sequential", "tuned")
    return {
        "examples": examples,
        "epochs": epochs,
        "examples_per_second": _rates(examples, feeding),
        "speed_against": {
            name: _ratio(feeding[name], feeding["tfdist"]) for name in others
        },
        "run_speed_against": {
            name: _ratio([epochs * each for each in feeding[name]], run)
            for name in others
        },
        "training_examples_per_second": _rates(examples, training),
        "input": {
            name: verdict(training["none"], training[name])
            for name in training
            if name != "none"
        },
    }


def verdict(alone: Sequence[float], fed: Sequence[float]) -> dict[str, Any]:
    """Say whether steps wait for their input.

    Args:
        alone: Seconds of passes whose batches are there already.
        fed: Seconds of passes that a pipeline feeds.

    Returns:
        The share of the time that the pipeline adds, as a `Spread`, and whether that is
        more than noise.

    Example:
        >>> verdict([1.0], [2.0])["is_bound"], verdict([1.0], [0.99])["is_bound"]
        (True, False)
    """
    shares = [1 - own / whole for own, whole in zip(alone, fed, strict=True)]
    added = spread(shares)
    return {"added_share": asdict(added), "is_bound": added.median > _WAITING_SHARE}


def _rates(examples: int, passes: Passes) -> dict[str, float]:
    return {
        name: examples / statistics.median(seconds) for name, seconds in passes.items()
    }


def _ratio(others: Sequence[float], own: Sequence[float]) -> dict[str, float]:
    """Return how many times as fast the second is."""
    pairs = zip(others, own, strict=True)
    return asdict(spread([other / mine for other, mine in pairs]))
