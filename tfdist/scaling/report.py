"""Scaling reports: runs on several numbers of processes, compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.scaling.laws import (
    amdahl_speedup,
    efficiency,
    fit_amdahl,
    fit_gustafson,
    gustafson_speedup,
)
from tfdist.scaling.throughput import Run

_Speedup = Callable[[float, float], float]
# The numbers of processes for which the laws predict speed-ups.
PREDICTED_SIZES = (8, 64, 1024)
_LITTLE = 0.5


@dataclass(frozen=True)
class ScalingRow:
    """Measurements on one number of processes.

    Args:
        processes: Number of processes.
        runs: Number of runs; the rate is their median.
        global_batch_size: Examples per step over all processes; None if unknown.
        examples_per_second: Rate of all processes together.
        speedup: Speed-up over the smallest number of processes.
        efficiency: Speed-up divided by the perfect one.
    """

    processes: int
    runs: int
    global_batch_size: int | None
    examples_per_second: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Law:
    """A scaling law with a fitted serial fraction.

    Args:
        serial_fraction: From 0 to 1.
        speedups: Predicted speed-ups, by the number of processes.
        limit: Upper limit of the speed-up; None if there is none.
    """

    serial_fraction: float
    speedups: Mapping[int, float]
    limit: float | None


@dataclass(frozen=True)
class ScalingReport:
    """Comparison of the runs of one model.

    Args:
        model: The name of the model; None if no file names it.
        scaling: "strong" if all runs have the same global batch, "weak" if all have the
            same batch per process, "mixed" if neither, "unknown" if a file does not say
            or all have the same number of processes.
        rows: Measurements, by the number of processes.
        amdahl: Amdahl's law; None if there is only one number of processes.
        gustafson: Gustafson's law, or None likewise.
        units_per_example: Units per example, if all runs agree.
        versions: Versions of each package for which runs differ.
    """

    model: str | None
    scaling: str
    rows: Sequence[ScalingRow]
    amdahl: Law | None
    gustafson: Law | None
    units_per_example: Mapping[str, float]
    versions: Mapping[str, Sequence[str]]

    @property
    def base(self) -> int:
        """The number of processes to which speed-ups relate."""
        return self.rows[0].processes

    @property
    def gains_little(self) -> bool:
        """True if a number of processes gives less than half of its perfect speed."""
        return any(row.efficiency < _LITTLE for row in self.rows)


def scaling_report(runs: Mapping[str, Run]) -> ScalingReport:
    """Compare runs of one model on several numbers of processes.

    Speed-ups relate to one process, or else to the smallest number of processes, which
    the laws then use as their unit.

    Args:
        runs: At least one run, by file name for error messages. Runs on the same number
            of processes count by their median.

    Returns:
        The report.

    Raises:
        ValueError: If the runs have several models, or those on the same number of
            processes have different global batches.

    Example:
        >>> from tfdist.scaling.throughput import EpochRate
        >>> one = Run(1, (EpochRate(100.0),), global_batch_size=64)
        >>> two = Run(2, (EpochRate(160.0),), global_batch_size=64)
        >>> report = scaling_report({"one.json": one, "two.json": two})
        >>> report.scaling, report.rows[1].speedup, report.rows[1].efficiency
        ('strong', 1.6, 0.8)
        >>> round(report.amdahl.serial_fraction, 6), round(report.amdahl.limit, 6)
        (0.25, 4.0)
    """
    _check_same("model", {name: run.model for name, run in runs.items()})
    groups: dict[int, dict[str, Run]] = {}
    for name, run in runs.items():
        groups.setdefault(run.processes, {})[name] = run
    rows = _rows(groups)
    amdahl, gustafson = _laws(rows) if len(rows) > 1 else (None, None)
    everyone = list(runs.values())
    units, *_ = every_unit = [run.units_per_example for run in everyone]
    return ScalingReport(
        model=next((run.model for run in everyone if run.model), None),
        scaling=_scaling_of(rows),
        rows=rows,
        amdahl=amdahl,
        gustafson=gustafson,
        units_per_example=units if all(u == units for u in every_unit) else {},
        versions=_versions_that_differ(everyone),
    )


def _check_same(what: str, values: Mapping[str, object]) -> None:
    """Reject files with different known values of a property."""
    known = {file: value for file, value in values.items() if value is not None}
    if len(set(known.values())) > 1:
        received = ", ".join(f"{value!r} in {file}" for file, value in known.items())
        raise ValueError(
            f"Runs that are compared must have the same {what}. "
            f"Received: {received}. Make a report for each."
        )


def _rows(groups: Mapping[int, Mapping[str, Run]]) -> list[ScalingRow]:
    """Return the row of each number of processes, the smallest first."""
    # Imported late, because it would slow down every start of the command.
    from statistics import median

    rates = {
        processes: median(run.examples_per_second for run in groups[processes].values())
        for processes in sorted(groups)
    }
    first = min(rates)
    return [
        ScalingRow(
            processes=processes,
            runs=len(groups[processes]),
            global_batch_size=_batch_of(processes, groups[processes]),
            examples_per_second=rate,
            speedup=rate / rates[first],
            efficiency=efficiency(rate, rates[first] / first, size=processes),
        )
        for processes, rate in rates.items()
    ]


def _batch_of(processes: int, group: Mapping[str, Run]) -> int | None:
    """Return the global batch of the runs on one number of processes."""
    batches = {file: run.global_batch_size for file, run in group.items()}
    _check_same(f"global batch size where both have {processes} processes", batches)
    return next(filter(None, batches.values()), None)


def _laws(rows: Sequence[ScalingRow]) -> tuple[Law, Law]:
    """Fit Amdahl's and Gustafson's laws to the rows."""
    base = rows[0].processes
    speedups = {row.processes / base: row.speedup for row in rows}
    sizes = [size for size in PREDICTED_SIZES if size > base]

    def law(fraction: float, speedup: _Speedup, limit: float | None) -> Law:
        predicted = {size: speedup(fraction, size / base) for size in sizes}
        return Law(fraction, predicted, limit)

    serial, scaled = fit_amdahl(speedups), fit_gustafson(speedups)
    return (
        law(serial, amdahl_speedup, 1.0 / serial if serial else None),
        law(scaled, gustafson_speedup, None if scaled < 1.0 else 1.0),
    )


def _scaling_of(rows: Sequence[ScalingRow]) -> str:
    """Derive the kind of scaling from the batches."""
    batches = [row.global_batch_size for row in rows if row.global_batch_size]
    if len(rows) == 1 or len(batches) < len(rows):
        return "unknown"
    if len(set(batches)) == 1:
        return "strong"
    shares = [batch / row.processes for row, batch in zip(rows, batches, strict=True)]
    return "weak" if len(set(shares)) == 1 else "mixed"


def _versions_that_differ(runs: Sequence[Run]) -> Mapping[str, Sequence[str]]:
    """Return the versions of packages for which runs differ."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.versions.items():
            versions.setdefault(name, set()).add(version)
    return {name: sorted(seen) for name, seen in versions.items() if len(seen) > 1}
