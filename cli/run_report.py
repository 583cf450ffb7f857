"""Output of `tfdist run`: its destinations, and lines on restarts and the end."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster.launcher import METRICS_FILE_VARIABLE, METRICS_JSON_VARIABLE
from tfdist.launching.console import has_terminal, print_line
from tfdist.launching.output import Output
from tfdist.launching.restarts import Attempt, Restarts
from tfdist.launching.result import RunResult
from tfdist_cli.options import check_outputs

# Longest excerpt of a line that is repeated after a failure, in characters.
_LONGEST_SHOWN = 200
METRICS_OPTIONS = {
    "--metrics-json FILE": "append the metrics of each epoch as a line of JSON; the "
    "chief does it where fit has the callback tfdist.callbacks.Throughput",
    "--metrics-file FILE": "write those of the last epoch for Prometheus, to a file "
    "like NAME.prom that the node exporter's textfile collector reads",
}
_NOT_WRITTEN = (
    "nothing was written to {}: no process has called fit with the callback that does "
    "it. Add it: model.fit(..., callbacks=[tfdist.callbacks.Throughput()])"
)


def output_of(args: argparse.Namespace) -> Output:
    """Return the destinations of the output, and create the folder of log files."""
    folder, is_json = args.output_dir, args.log_format == "json"
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                "--output-dir must be a folder or a name for a new one. "
                f"Received: {folder} ({error.strerror}). Choose another place."
            ) from None
    return Output(
        tag=not args.no_tag_output,
        is_of_chief=args.output == "chief",
        directory=folder,
        # A line of the terminal says how far the chief is.
        is_live=not args.no_tag_output and not is_json and has_terminal(),
        is_json=is_json,
    )


def restart_lines(result: RunResult, notice: str) -> list[str]:
    """Return the last lines of the failed process, and why the job restarts."""
    return [*_last_lines(result), notice]


def end_lines(restarts: Restarts, attempts: Sequence[Attempt]) -> list[str]:
    """Return lines on the restarts and the failure, if any."""
    result = attempts[-1].result
    lines = restarts.report(attempts)
    if result.reason != "done":
        lines += [*_last_lines(result), result.headline(), *_hints(result)]
    return lines


def _last_lines(result: RunResult) -> list[str]:
    """Return the last lines of the process that failed first, with a heading."""
    if result.failed_rank is None:
        return []
    failed = result.exit_of(result.failed_rank)
    if result.is_held_up:
        # The others say so.
        ended = result.ended_ranks
        others = (one for one in result.exits if one.code and one.rank not in ended)
        failed = next(others, failed)
    shown = [f"    {_shortened(line)}" for line in failed.tail]
    return [f"the last lines of {failed.name}:", *shown] if shown else []


def _hints(result: RunResult) -> list[str]:
    """Return what to do after a failure that the line of its end does not explain."""
    failed = result.failed_rank
    if failed is None or not result.exit_of(failed).wanted_terminal:
        return []
    return [
        "breakpoint() and input() need a terminal, which no rank has. Debug with one "
        "process: python train.py"
    ]


def _shortened(line: str) -> str:
    """Cut the middle out of a very long line: an error ends with what to do."""
    half = _LONGEST_SHOWN // 2
    return line if len(line) <= 2 * half else f"{line[:half]} ... {line[-half:]}"


def print_lines(lines: Sequence[str], *, is_json: bool) -> None:
    """Print lines on stderr or as JSON, unquoted ones after the name of the command."""
    for line in lines:
        named = line if line.startswith(" ") else f"tfdist run: {line}"
        print_line(named, is_json=is_json)


class Metrics:
    """The files on this host, which must be writable; other hosts check their own."""

    def __init__(self, args: argparse.Namespace, *, is_here: bool) -> None:
        files: list[Path] = []
        if is_here:
            _check_files(args)
            files = [Path(name) for name in metrics_variables(args).values()]
        self._before = {file: _stamp(file) for file in files}

    def report(self, result: RunResult) -> list[str]:
        """Return a line on the files that a job has not written, if it ended well."""
        before = self._before.items()
        same = [str(file) for file, stamp in before if _stamp(file) == stamp]
        is_told = same and result.reason == "done"
        return [_NOT_WRITTEN.format(" and ".join(same))] if is_told else []


def metrics_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables that name the files to the processes."""
    files = {
        METRICS_JSON_VARIABLE: args.metrics_json,
        METRICS_FILE_VARIABLE: args.metrics_file,
    }
    return {name: str(file.absolute()) for name, file in files.items() if file}


def _check_files(args: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before any work."""
    check_outputs(args, "metrics_json", "metrics_file")
    file: Path | None = args.metrics_file
    if file is None:
        return
    # As root, even a device could be replaced.
    is_special = file.exists() and not file.is_file()
    if is_special or not os.access(file.parent, os.W_OK):
        raise PermissionError(
            "--metrics-file must be a file that can be replaced by a new one. "
            f"Received: {file}. Choose another place."
        )


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written; None before there is one."""
    if not file.exists():
        return None
    return file.stat().st_mtime_ns, file.stat().st_size
