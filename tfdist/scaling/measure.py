"""Rates in examples per second, measured from counters and clock readings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A number of examples, and the time they took.

    Args:
        examples: Number of examples; fractional for a share of a step.
        seconds: Time in seconds; 0.0 if nothing was measured.
        skipped_steps: Number of steps left out before these. Default 0.

    Example:
        >>> Rate(examples=300.0, seconds=2.0).examples_per_second
        150.0
    """

    examples: float
    seconds: float
    skipped_steps: int = 0

    @property
    def examples_per_second(self) -> float:
        """The rate; NaN if nothing was measured."""
        return self.examples / self.seconds if self.seconds else math.nan


class RateMeter:
    """Measures the steady part of each epoch of one `fit`.

    The first steps of a `fit` are slow, because TensorFlow traces and compiles, and
    connections and caches are cold. So is the first step of any epoch, because the
    input restarts and ranks wait for the slowest one. The meter skips these steps, and
    `Rate` gives their number.

    A reading may be costly, so the meter needs two per epoch: one at the start of its
    steady part, given by `starts_at`, and one at its end.

    Args:
        skip_steps: Steps to skip from the start of the first epoch, continuing in the
            next if that is shorter; each other epoch skips one step. 0 counts every
            step. Default 2.

    Raises:
        ValueError: If `skip_steps` is not a whole number, or negative.

    Example:
        >>> meter = RateMeter(skip_steps=1)
        >>> [meter.starts_at(step) for step in range(3)]
        [False, True, True]
        >>> meter.start(1, examples=32.0, seconds=10.0)
        >>> meter.stop(5, examples=160.0, seconds=12.0)
        Rate(examples=128.0, seconds=2.0, skipped_steps=1)
    """

    def __init__(self, *, skip_steps: int = 2) -> None:
        if not isinstance(skip_steps, int) or skip_steps < 0:
            raise ValueError(
                "skip_steps must be a whole number and not negative. "
                f"Received: skip_steps={skip_steps!r}. Use 0 to count every step."
            )
        self._left_to_skip = skip_steps
        self._skip_in_each_epoch = min(skip_steps, 1)
        self._start: tuple[int, float, float] | None = None

    def starts_at(self, step: int) -> bool:
        """Return whether the steady part of this epoch starts here.

        Args:
            step: Completed steps of this epoch.

        Returns:
            True if `start` is to be called now.
        """
        skip = max(self._left_to_skip, self._skip_in_each_epoch)
        return self._start is None and step >= skip

    def start(self, step: int, *, examples: float, seconds: float) -> None:
        """Take the reading at the start of this epoch's steady part.

        Args:
            step: Completed steps of this epoch.
            examples: Reading of an example counter, which need not start at 0.
            seconds: Time on a monotonic clock.
        """
        self._start = (step, examples, seconds)

    def stop(self, step: int, *, examples: float, seconds: float) -> Rate:
        """Take the last reading of this epoch, and prepare for the next one.

        Args:
            step: Completed steps of this epoch.
            examples: Reading of the same counter.
            seconds: Time at which the last of these steps ended, on the same clock.

        Returns:
            The rate of the steady steps; 0 examples in 0 seconds if there were none.

        Raises:
            ValueError: If the time did not increase or the examples decreased.
        """
        start, self._start = self._start, None
        self._left_to_skip = max(0, self._left_to_skip - step)
        # If the length of the data is unknown, Keras announces one step too many.
        if start is None or start[0] >= step:
            return Rate(0.0, 0.0, skipped_steps=step)
        first_step, first_examples, first_seconds = start
        if seconds <= first_seconds:
            raise ValueError(
                "seconds must be later than at the start of the measurement. "
                f"Received: seconds={seconds} after {first_seconds}. "
                "Use a clock that only goes forward, such as time.perf_counter."
            )
        if examples < first_examples:
            raise ValueError(
                "examples must not be fewer than at the start of the measurement. "
                f"Received: examples={examples} after {first_examples}. "
                "Something set the counter back, such as an evaluation of the same "
                "model: read the counter before it."
            )
        return Rate(
            examples - first_examples, seconds - first_seconds, skipped_steps=first_step
        )


def over_ranks(rates: Sequence[Rate]) -> Rate:
    """Return the rate of all ranks together, in the time of the slowest rank.

    Adding the rates of the ranks would overstate a job with one slow rank.

    Args:
        rates: One per rank, over the same steps; at least one.

    Returns:
        The sum of the examples in the longest time.

    Example:
        >>> over_ranks([Rate(300.0, 2.0), Rate(100.0, 4.0)]).examples_per_second
        100.0
    """
    return Rate(
        sum(rate.examples for rate in rates),
        max(rate.seconds for rate in rates),
        skipped_steps=max(rate.skipped_steps for rate in rates),
    )
