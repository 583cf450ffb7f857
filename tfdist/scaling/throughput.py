"""The throughput of a run: examples per second, and the JSON file of them."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "tfdist throughput"
VERSION = 1
_LONGEST = 2**26
_WRONG = (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)


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
            ValueError: If the examples decreased.
        """
        start, self._start = self._start, None
        self._left_to_skip = max(0, self._left_to_skip - step)
        # If the length of the data is unknown, Keras announces one step too many.
        if start is None or start[0] >= step:
            return Rate(0.0, 0.0, skipped_steps=step)
        first_step, first_examples, first_seconds = start
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


@dataclass(frozen=True)
class EpochRate:
    """Throughput of an epoch.

    Args:
        examples_per_second: Rate of all processes together; None if every step of the
            epoch was skipped.
        skipped_steps: Steps left out at its start. Default 0.
    """

    examples_per_second: float | None
    skipped_steps: int = 0


@dataclass(frozen=True)
class Run:
    """One training, as recorded by `Throughput(json=...)`.

    Args:
        processes: Number of processes that trained.
        epochs: The rate of each epoch.
        model: The name of the model; None if unknown. Default None.
        global_batch_size: Examples per step over all processes; None if unknown.
            Default None.
        units_per_example: Units per example by name, such as {"tokens": 512}. Default
            empty.
        versions: Package versions by name. Default empty.

    Example:
        >>> run = Run(2, (EpochRate(None), EpochRate(90.0), EpochRate(100.0)))
        >>> run.examples_per_second
        95.0
    """

    processes: int
    epochs: tuple[EpochRate, ...]
    model: str | None = None
    global_batch_size: int | None = None
    units_per_example: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def examples_per_second(self) -> float:
        """The median over the epochs, without outliers; NaN if none was measured."""
        # Imported late, because it would slow down every start of the command.
        from statistics import median

        rates = [epoch.examples_per_second for epoch in self.epochs]
        measured = [rate for rate in rates if rate is not None]
        return median(measured) if measured else math.nan


def text_of_run(run: Run) -> str:
    """Return the JSON text of a run, as docs/scaling.md describes it.

    Args:
        run: The run.

    Returns:
        The content of its file.
    """
    content = {"format": FORMAT, "version": VERSION, **asdict(run)}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def read_run(file: str | os.PathLike[str]) -> Run:
    """Read the file of a run.

    Args:
        file: A file from `Throughput(json=...)`, or written by hand: `model`,
            `global_batch_size`, `skipped_steps`, `units_per_example` and `versions` are
            optional.

    Returns:
        The run, with at least one measured epoch.

    Raises:
        ValueError: If the file cannot be read, or is invalid.
    """
    try:
        with open(file) as source:
            # A device may have no end, and a cut text is no JSON.
            run = _run_of(json.loads(source.read(_LONGEST)))
    except _WRONG as error:
        raise ValueError(
            "A file must be one that Throughput wrote. "
            f"Received: {file} ({type(error).__name__}: {error}). "
            "Train with callbacks=[tfdist.callbacks.Throughput(json=FILE)]."
        ) from None
    if math.isnan(run.examples_per_second):
        raise ValueError(
            "A run must have an epoch in which a step was measured. "
            f"Received: {file}, with {len(run.epochs)} epochs and no rate. "
            "Train for more steps, or give Throughput skip_steps=0."
        )
    return run


def _run_of(content: dict[str, Any]) -> Run:
    """Return the run; raise for missing or invalid fields."""
    if (content["format"], content["version"]) != (FORMAT, VERSION):
        raise ValueError(f'the format is not "{FORMAT}", version {VERSION}')
    run = Run(
        processes=content["processes"],
        epochs=tuple(
            EpochRate(epoch["examples_per_second"], epoch.get("skipped_steps", 0))
            for epoch in content["epochs"]
        ),
        model=content.get("model"),
        global_batch_size=content.get("global_batch_size"),
        units_per_example=dict(content.get("units_per_example", {})),
        versions=dict(content.get("versions", {})),
    )
    rates = [epoch.examples_per_second for epoch in run.epochs]
    counts = [run.processes, run.global_batch_size]
    if not (
        isinstance(run.model, str | None)
        and run.processes is not None
        and all(_is_positive(count, int) for count in counts)
        and all(
            _is_positive(value) for value in (*rates, *run.units_per_example.values())
        )
    ):
        raise ValueError("a value is of another type, or not positive")
    return run


def _is_positive(value: Any, kinds: Any = int | float) -> bool:
    """Return whether a value is None, or a positive number of a kind."""
    # bool is a subclass of int.
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    return value is None or (is_number and 0 < value < math.inf)
