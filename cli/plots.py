"""The plots of `tfdist report` and `tfdist bench allreduce`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.benchmarks import format_size
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


def new_figure(file: Path, width: float, height: float) -> Any:
    """Return an empty figure for a file, of a size in inches."""
    try:
        # Not pyplot, which would look for a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "--plot needs matplotlib. Received: an environment without it. "
            "Run pip install matplotlib, or leave --plot out."
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


def _save(figure: Any, axes: Any, file: Path) -> None:
    """Save a figure, with the legend of some axes below all, where it covers nothing.

    It is opaque, because black labels must be read on a dark page, too.
    """
    handles, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels)) < _LONG_LABEL else 1
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    figure.savefig(file, dpi=150, facecolor="white")
