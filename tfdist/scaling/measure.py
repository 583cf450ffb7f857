"""From counts and clock readings to rates: the one meaning of examples per second."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """Examples, and the time they took.

    Args:
        examples: How many. Not always whole: a share of a step may be a fraction.
        seconds: The time they took; 0.0 when nothing was measured.
        skipped_steps: Steps just before that were left out, so that whoever prints the
            rate can say so. Default 0.

    Example:
        >>> Rate(examples=300.0, seconds=2.0).examples_per_second
        150.0
    """

    examples: float
    seconds: float
    skipped_steps: int = 0

    @property
    def examples_per_second(self) -> float:
        """The rate; NaN when nothing was measured, because 0 would be a claim."""
        return self.examples / self.seconds if self.seconds else math.nan


class RateMeter:
    """Measures the steady part of each epoch of one `fit`.

    The first steps of a `fit` are not like the others: TensorFlow traces and compiles,
    connections and caches are new. Neither is the first step of any epoch: the input
    starts again, and the ranks wait for the one where that takes longest. A rate that
    includes them says little about the hour to come. The meter leaves them out, and the
    `Rate` tells how many.

    A reading may be costly, so the meter asks for few: one where the steady part
    of an epoch starts (`starts_at` says where), and one at its end.

    Args:
        skip_steps: How many steps to leave out, counted from the first epoch's first
            and going on in the next if that is shorter; of each other epoch one is left
            out. 0 counts every step. Default 2.

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
        """Tell whether the steady part of this epoch starts here.

        Args:
            step: Steps of this epoch that are done.

        Returns:
            True if `start` is to be called now.
        """
        skip = max(self._left_to_skip, self._skip_in_each_epoch)
        return self._start is None and step >= skip

    def start(self, step: int, *, examples: float, seconds: float) -> None:
        """Take the reading from which the steady part of this epoch counts.

        Args:
            step: Steps of this epoch that are done.
            examples: Examples that a counter shows; it need not be at 0.
            seconds: Time, on a clock that only goes forward.
        """
        self._start = (step, examples, seconds)

    def stop(self, step: int, *, examples: float, seconds: float) -> Rate:
        """Take the last reading of this epoch, and be ready for the next one.

        Args:
            step: Steps of this epoch that are done.
            examples: Examples that the same counter shows now.
            seconds: Time when the last of these steps was done, on the same clock.

        Returns:
            The rate of the steady steps; of 0 examples in 0 seconds if there were none.

        Raises:
            ValueError: If the time did not increase or the examples decreased.
        """
        start, self._start = self._start, None
        self._left_to_skip = max(0, self._left_to_skip - step)
        # Where the end of the data is unknown, Keras announces a step that never comes.
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
    """Return what all ranks did together.

    The work is done when the slowest rank has done its part: the examples add up,
    the time is the longest. Adding the ranks' own rates would flatter a job in which
    one is slow.

    Args:
        rates: One of each rank, over the same steps; at least one.

    Returns:
        The rate of all ranks.

    Example:
        >>> over_ranks([Rate(300.0, 2.0), Rate(100.0, 4.0)]).examples_per_second
        100.0
    """
    return Rate(
        sum(rate.examples for rate in rates),
        max(rate.seconds for rate in rates),
        skipped_steps=max(rate.skipped_steps for rate in rates),
    )
