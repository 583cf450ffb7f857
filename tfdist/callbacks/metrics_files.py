"""Files in which a job's chief leaves its metrics, for people and for Prometheus."""

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tfdist.cluster.launcher import Launcher

# Name, type and explanation; a value that is not known has no line.
_PROMETHEUS = {
    "epoch": ("tfdist_epoch", "gauge", "Number of the last epoch, from 1."),
    "unix_seconds": (
        "tfdist_updated_timestamp_seconds",
        "gauge",
        "Unix time at which these metrics were written.",
    ),
    "processes": ("tfdist_processes", "gauge", "Processes that train."),
    "examples_per_second": (
        "tfdist_examples_per_second",
        "gauge",
        "Examples per second of all processes in the last epoch.",
    ),
    "step_seconds": (
        "tfdist_step_seconds",
        "gauge",
        "Mean time of a step in the last epoch.",
    ),
    "wait_share": (
        "tfdist_wait_ratio",
        "gauge",
        "Share of a step in which ranks wait for others, the mean of the ranks.",
    ),
    "loss_scale": ("tfdist_loss_scale", "gauge", "Factor of the loss, 1 without."),
    "restarts": ("tfdist_restarts_total", "counter", "Restarts of the job."),
}


@dataclass(frozen=True)
class EpochMetrics:
    """Metrics after an epoch, or at the start of a `fit`; None if not known."""

    epoch: int | None
    processes: int
    examples_per_second: float | None = None
    # The steady steps of the slowest rank.
    step_seconds: float | None = None
    wait_share: float | None = None
    loss_scale: float | None = None
    logs: Mapping[str, float] = field(default_factory=dict)
    unix_seconds: float = field(default_factory=time.time)


class MetricsFiles:
    """The files that the launcher or the environment has asked for, if any."""

    def __init__(self, launcher: Launcher) -> None:
        self._json, self._prometheus = launcher.metrics_json, launcher.metrics_file
        self._restarts = launcher.restarts

    @property
    def are_wanted(self) -> bool:
        """True if there is a file to write."""
        return bool(self._json or self._prometheus)

    def begin(self, metrics: EpochMetrics) -> None:
        """Write what is known before the first epoch, or fail before it."""
        if self._json:
            append_line(self._json)
        self._write_prometheus(metrics)

    def write(self, metrics: EpochMetrics) -> None:
        """Append a line of JSON, and replace the file for Prometheus."""
        if self._json:
            line = json_line(metrics, self._restarts)
            append_line(self._json, line)
        self._write_prometheus(metrics)

    def _write_prometheus(self, metrics: EpochMetrics) -> None:
        """Replace the file for Prometheus as a whole."""
        if self._prometheus:
            path = self._prometheus
            # The node exporter reads every name that ends with .prom.
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            text = prometheus_text(metrics, self._restarts, run=path.stem)
            beside.write_text(text)
            beside.replace(path)


def json_line(metrics: EpochMetrics, restarts: int) -> str:
    """Return metrics as JSON; null stands for what is not known or not finite."""
    values = {**asdict(metrics), "restarts": restarts}
    values["logs"] = {name: _finite(value) for name, value in metrics.logs.items()}
    return json.dumps(values, allow_nan=False)


def prometheus_text(metrics: EpochMetrics, restarts: int, run: str) -> str:
    """Return metrics in Prometheus's text format, labelled with the name of the run."""
    # Not "job", which Prometheus sets itself. The node exporter refuses two files with
    # the same labels.
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        run = run.replace(character, escaped)
    values = {**asdict(metrics), "restarts": restarts}
    lines = []
    for key, (name, kind, text) in _PROMETHEUS.items():
        if values[key] is not None:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines.append(f'{name}{{run="{run}"}} {values[key]}')
    return "\n".join([*lines, ""])


def append_line(path: Path, line: str = "") -> None:
    """Append a line in one write, after ending one that a full disk has cut short."""
    with path.open("a+b") as file:
        is_cut = file.tell() > 0
        if is_cut:
            file.seek(-1, os.SEEK_END)
            is_cut = file.read() != b"\n"
        if line or is_cut:
            text = "\n" * is_cut + line + "\n" * bool(line)
            file.write(text.encode())


def _finite(value: float) -> float | None:
    """Return a number, or None for one that JSON does not have."""
    return value if math.isfinite(value) else None
