"""The plots of `tfdist report` and `tfdist bench allreduce`."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tfdist.benchmarks import format_size
from tfdist.recorder.job import EpochOfRanks, JobRecord
from tfdist.recorder.reader import Record
from tfdist.recorder.step_times import StepTimes, shares_of
from tfdist.scaling.laws import amdahl_speedup, gustafson_speedup
from tfdist.scaling.report import ScalingReport

# The laws are drawn to this multiple of the largest measurement.
_BEYOND = 4
_POINTS = 200
# Curves closer than this share look like one.
_VISIBLE = 0.02
# The limits of the all-reduce that the machine sets, and their lines.
_LIMITS = {"memory": "k--", "tcp": "k:"}
# Two columns of such labels would be wider than a figure.
_LONG_LABEL = 40
_STYLES = (("--", "grey"), ("-", "tab:blue"), ("-", "tab:orange"))
# No wider than a telephone, on which letters would be smaller than here.
_INCHES = 4.6, 3.2
# More lines or bars cannot be told apart.
_MOST_RANKS = 8
# Larger numbers do not fit on an axis.
_LARGEST = 1e30
_NO_STEP = StepTimes(math.nan, math.nan, math.nan)
_SHARES = {
    "input": "tab:orange",
    "compute": "tab:blue",
    "communication": "tab:green",
    "waiting": "tab:red",
}
_ENDS = {
    "ended by itself": "tab:blue",
    "ended with an error": "tab:orange",
    "killed, or running": "tab:gray",
}


def new_figure(file: Path, width: float, height: float, option: str = "--plot") -> Any:
    """Return an empty figure for a file, of a size in inches."""
    try:
        # Not pyplot, which would look for a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            f"{option} needs matplotlib. Received: an environment without it. "
            f"Run pip install matplotlib, or leave {option} out."
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    endings = figure.canvas.get_supported_filetypes()
    if file.suffix[1:].lower() not in endings:
        raise ValueError(
            "--plot must be a file of a format that matplotlib writes. Received: "
            f"--plot {file}. End its name in .png, .svg or .pdf."
        )
    return figure


def draw_allreduce(
    figure: Any,
    rows: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    file: Path,
) -> None:
    """Plot latency and bus bandwidth over the size of the tensor to a file."""
    sizes = [row["bytes"] for row in rows]
    # Labels of other sizes would cover these.
    ticks = [size for size in sizes if size & (size - 1) == 0] or sizes
    panels = (
        ("seconds", 1e3, "time, ms"),
        ("bus_bytes_per_second", 1e-9, "bus bandwidth, GB/s"),
    )
    for axes, (key, factor, text) in zip(figure.subplots(1, 2), panels, strict=True):
        for name in rows[0][key]:
            values = [factor * row[key][name] for row in rows]
            axes.plot(sizes, values, _LIMITS.get(name, "o-"), label=labels[name])
        _use_logarithms(axes)
        axes.set_xticks(ticks, map(format_size, ticks), rotation=45)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("tensor")
        axes.set_ylabel(text)
    _save(figure, axes, file)


def draw_scaling(figure: Any, report: ScalingReport, file: Path) -> None:
    """Plot the measurements, the laws and the perfect speed-up to a file."""
    axes = figure.add_subplot()
    _add_curves(axes, report)
    axes.plot(
        [row.processes for row in report.rows],
        [row.speedup for row in report.rows],
        "o",
        color="black",
        markersize=8,
        label="measured",
        zorder=3,
    )
    _label(axes, report)
    _save(figure, axes, file)


def svg_of(draw: Callable[[Any, JobRecord], bool], job: JobRecord) -> str:
    """Return a picture as an element of HTML, empty if there is nothing to draw."""
    figure = new_figure(Path("page.svg"), *_INCHES, "--html")
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    if not draw(axes, job):
        return ""
    from matplotlib import rc_context

    file = io.StringIO()
    # The letters are the browser's.
    with rc_context({"svg.fonttype": "none", "savefig.format": "svg"}):
        _save(figure, axes, file)
    svg = "<svg" + file.getvalue().partition("<svg")[2]
    svg = re.sub("<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Each picture would have groups of the same names, to which nothing refers.
    return re.sub('<g id="[^"]*"', "<g", svg)


def draw_logs(
    axes: Any, job: JobRecord, names: Sequence[str], bottom: float | None = None
) -> bool:
    """Draw values of the logs by epoch."""

    def value_of(name: str) -> Callable[[EpochOfRanks], float]:
        return lambda epoch: epoch.logs.get(name, math.nan)

    drawn = [
        _draw_epochs(axes, job, name, value_of(name), f"C{n}")
        for n, name in enumerate(names)
    ]
    axes.set_ylim(bottom=bottom)
    return any(drawn)


def draw_times(axes: Any, job: JobRecord) -> bool:
    """Draw the time of a step, and of it the input and compute of each rank."""
    if not job.timed:
        return False

    def values_of(rank: int, part: str) -> Callable[[EpochOfRanks], float]:
        # A restart may have another number of ranks.
        return lambda epoch: (
            1000 * getattr((epoch.by_rank[rank : rank + 1] or [_NO_STEP])[0], part)
        )

    _draw_epochs(axes, job, "whole step", values_of(0, "step"), "black")
    for n, rank in enumerate(_first([-each.own for each in job.timed[-1].by_rank])):
        label = f"rank {rank}: input and compute"
        _draw_epochs(axes, job, label, values_of(rank, "own"), f"C{n}")
    axes.set_ylabel("ms for a step")
    axes.set_ylim(bottom=0)
    return True


def draw_shares(axes: Any, job: JobRecord) -> bool:
    """Draw the shares of a step by rank, in the last epoch with times."""
    if not job.timed:
        return False
    last = job.timed[-1]
    shares = shares_of(last.by_rank)
    ranks = _first([each.waiting for each in shares])
    left = [0.0] * len(ranks)
    for name, colour in _SHARES.items():
        widths = [100 * getattr(shares[rank], name) for rank in ranks]
        axes.barh([*range(len(ranks))], widths, left=left, color=colour, label=name)
        left = [one + width for one, width in zip(left, widths, strict=True)]
    axes.set_xlabel(f"% of a step in epoch {last.number}")
    _name_ranks(axes, ranks)
    return True


def draw_time_line(axes: Any, job: JobRecord) -> bool:
    """Draw when each rank ran, when it ended its epochs, and faults."""
    records = job.records
    origin = min(record.started - ahead for record, ahead in records)
    lasts = sorted((max(each.times) - ahead, each.rank) for each, ahead in records)
    ranks = sorted([*dict.fromkeys(rank for _, rank in lasts)][:_MOST_RANKS])
    for record, ahead in records:
        if record.rank in ranks:
            _draw_record(axes, record, ranks.index(record.rank), ahead + origin)
    for start in job.starts:
        if start.end is not None and start.end.reason:
            at = start.end.ended - origin
            axes.axvline(at, color="tab:red", ls="--", label="end by a fault")
    axes.set_xlabel("seconds since the first start")
    _name_ranks(axes, ranks)
    return True


def _add_curves(axes: Any, report: ScalingReport) -> None:
    """Plot the perfect speed-up and the laws, from the smallest run on."""
    ratio = _BEYOND * report.rows[-1].processes / report.base
    sizes = [ratio ** (i / _POINTS) for i in range(_POINTS + 1)]
    curves = {"perfect": sizes}
    laws: tuple[tuple[str, Any, Callable[[float, float], float]], ...] = (
        ("Amdahl", report.amdahl, amdahl_speedup),
        ("Gustafson", report.gustafson, gustafson_speedup),
    )
    for name, law, speedup in laws:
        if law is not None:
            serial = law.serial_fraction
            label = f"{name}, serial fraction {serial:.4f}"
            curves[label] = [speedup(serial, size) for size in sizes]
    drawn: list[tuple[str, list[float]]] = []
    for label, curve in curves.items():
        for number, (names, other) in enumerate(drawn):
            if _are_alike(curve, other):
                drawn[number] = f"{names}; {label}", other
                break
        else:
            drawn.append((label, curve))
    processes = [size * report.base for size in sizes]
    for (label, curve), style in zip(drawn, _STYLES, strict=False):
        axes.plot(processes, curve, style[0], color=style[1], label=label)


def _are_alike(curve: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two curves look like one line."""
    pairs = zip(curve, other, strict=True)
    return all(abs(a - b) < _VISIBLE * a for a, b in pairs)


def _label(axes: Any, report: ScalingReport) -> None:
    """Label the plot, with logarithmic axes."""
    _use_logarithms(axes, base=2)
    axes.set_xlabel("processes")
    against = "one process" if report.base == 1 else f"{report.base} processes"
    axes.set_ylabel(f"speed-up against {against}")
    model = "" if report.model is None else f" of {report.model}"
    advice = "\nprocesses add little: enlarge the batch" if report.gains_little else ""
    axes.set_title(f"Scaling{model}{advice}")


def _use_logarithms(axes: Any, base: int = 10) -> None:
    """Make both axes logarithmic, with plain numbers on a grid."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log", base=base)
    axes.set_yscale("log", base=base)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
        axis.set_minor_formatter(NullFormatter())
    if base == 10:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.grid(visible=True, alpha=0.3)


def _save(figure: Any, axes: Any, file: Path | IO[str]) -> None:
    """Save a figure, with the legend of some axes below all, where it covers nothing.

    It is opaque, because black labels must be read on a dark page, too.
    """
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    columns = 2 if max(map(len, labels)) < _LONG_LABEL else 1
    figure.legend(
        by_label.values(), by_label, loc="outside lower center", ncols=columns
    )
    figure.savefig(file, dpi=150, facecolor="white")


def _draw_record(axes: Any, record: Record, row: int, shift: float) -> None:
    """Draw one start of a rank, whose clock is ahead by a shift."""
    number = 2 if record.end is None else int(record.end != "")
    label, colour = [*_ENDS.items()][number]
    began, last = record.started - shift, max(record.times) - shift
    axes.barh(row, last - began, left=began, height=0.5, color=colour, label=label)
    if epochs := [epoch.ended - shift for epoch in record.epochs]:
        rows = [row] * len(epochs)
        axes.plot(epochs, rows, "|", color="black", label="end of an epoch")


def _draw_epochs(
    axes: Any,
    job: JobRecord,
    label: str,
    value: Callable[[EpochOfRanks], float],
    colour: str,
) -> bool:
    """Draw a value by epoch, with a line for each `fit`; return if there is any."""
    is_drawn = False
    for restarts, start in enumerate(job.starts):
        points: list[tuple[float, float]] = []
        for epoch in start.epochs:
            if points and epoch.number <= points[-1][0]:
                points.append((math.nan, math.nan))
            number = value(epoch)
            points.append(
                (epoch.number, number if abs(number) < _LARGEST else math.nan)
            )
        if all(math.isnan(number) for _, number in points):
            continue
        x, y = zip(*points, strict=True)
        axes.plot(x, y, "o-", markersize=4, color=colour, label=label)
        if restarts:
            axes.axvline(
                x[0], color="tab:red", lw=1, ls="--", label="restart", zorder=1
            )
        is_drawn = True
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return is_drawn


def _first(weights: Sequence[float]) -> list[int]:
    """Return the ranks with the least weights, if there are too many, in order."""
    ranks = sorted(range(len(weights)), key=lambda rank: weights[rank])
    return sorted(ranks[:_MOST_RANKS])


def _name_ranks(axes: Any, ranks: Sequence[int]) -> None:
    """Name the rows of ranks, the first on top."""
    axes.set_yticks([*range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
