"""Files of metrics of `tfdist run`: options, checks, and what was not written."""

import argparse
import os
from pathlib import Path

from tfdist.launch import RunResult
from tfdist.rendezvous.metrics_files import METRICS_FILE_VARIABLE, METRICS_JSON_VARIABLE
from tfdist_cli.options import Parser, add_options, check_json

_OPTIONS = {
    "--metrics-json FILE": "append the metrics of each epoch as a line of JSON; the "
    "chief does it where fit has the callback tfdist.callbacks.Throughput",
    "--metrics-file FILE": "write those of the last epoch for Prometheus, to a file "
    "like NAME.prom that the node exporter's textfile collector reads",
}
_NOT_WRITTEN = (
    "nothing was written to {}: no process has called fit with the callback that does "
    "it. Add it: model.fit(..., callbacks=[tfdist.callbacks.Throughput()])"
)


class Metrics:
    """The files on this host, which must be writable; other hosts check their own."""

    def __init__(self, args: argparse.Namespace, *, is_here: bool) -> None:
        files: list[Path] = []
        if is_here:
            _check(args.metrics_json, args.metrics_file)
            files = [Path(name) for name in metrics_variables(args).values()]
        self._before = {file: _stamp(file) for file in files}

    def report(self, result: RunResult) -> list[str]:
        """Return a line on the files that a job has not written, if it ended well."""
        before = self._before.items()
        same = [str(file) for file, stamp in before if _stamp(file) == stamp]
        is_told = same and result.reason == "done"
        return [_NOT_WRITTEN.format(" and ".join(same))] if is_told else []


def add_options_of_metrics(parser: Parser) -> None:
    """Add the files of metrics."""
    add_options(parser, _OPTIONS)


def metrics_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables that name the files to the processes."""
    files = {
        METRICS_JSON_VARIABLE: args.metrics_json,
        METRICS_FILE_VARIABLE: args.metrics_file,
    }
    return {name: str(file.absolute()) for name, file in files.items() if file}


def _check(json: Path | None, prometheus: Path | None) -> None:
    """Refuse files that cannot be written, before any work."""
    check_json(json, "--metrics-json")
    check_json(prometheus, "--metrics-file")
    if prometheus is None:
        return
    # As root, even a device could be replaced.
    is_special = prometheus.exists() and not prometheus.is_file()
    if is_special or not os.access(prometheus.parent, os.W_OK):
        raise PermissionError(
            "--metrics-file must be a file that can be replaced by a new one. "
            f"Received: {prometheus}. Choose another place."
        )


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written; None before there is one."""
    if not file.exists():
        return None
    return file.stat().st_mtime_ns, file.stat().st_size
