"""The JSON file of one run's throughput."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "tfdist throughput"
VERSION = 1


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


_LONGEST = 2**26
_WRONG = (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError)


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
