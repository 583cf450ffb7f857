"""The plot of `tfdist report --plot`: speed-up over the number of processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.scaling import ScalingReport, amdahl_speedup, gustafson_speedup

# The laws are drawn to this multiple of the largest measurement, at least to 64.
_BEYOND = 4
_AT_LEAST = 64
_POINTS = 200


def draw(report: ScalingReport, file: Path) -> None:
    """Plot the measurements, the laws and the perfect speed-up to a file."""
    try:
        # Not pyplot, which would look for a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "--plot needs matplotlib. Received: an environment without it. "
            "Run pip install matplotlib, or leave --plot out."
        ) from None
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    _add_curves(axes, report)
    axes.plot(
        [row.processes for row in report.rows],
        [row.speedup for row in report.rows],
        "o",
        color="black",
        label="measured",
    )
    _label(axes, report)
    figure.savefig(file, dpi=150)


def _add_curves(axes: Any, report: ScalingReport) -> None:
    """Plot the perfect speed-up and the laws, from the smallest run on."""
    largest = max(_AT_LEAST, _BEYOND * report.rows[-1].processes)
    ratio = largest / report.base
    sizes = [ratio ** (i / _POINTS) for i in range(_POINTS + 1)]
    processes = [size * report.base for size in sizes]
    axes.plot(processes, sizes, "--", color="grey", label="perfect")
    laws: tuple[tuple[str, Any, Callable[[float, float], float]], ...] = (
        ("Amdahl", report.amdahl, amdahl_speedup),
        ("Gustafson", report.gustafson, gustafson_speedup),
    )
    for name, law, speedup in laws:
        if law is not None:
            serial = law.serial_fraction
            axes.plot(
                processes,
                [speedup(serial, size) for size in sizes],
                label=f"{name}, serial fraction {serial:.4f}",
            )


def _label(axes: Any, report: ScalingReport) -> None:
    """Label the plot, with logarithmic axes."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("processes")
    against = "one process" if report.base == 1 else f"{report.base} processes"
    axes.set_ylabel(f"speed-up against {against}")
    model = "" if report.model is None else f" of {report.model}"
    axes.set_title(f"Scaling{model}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
