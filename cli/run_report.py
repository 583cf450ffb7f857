"""Output of `tfdist run`: its destinations, and lines on restarts and the end."""

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdist.launch import (
    Attempt,
    Output,
    Restarts,
    RunResult,
    has_terminal,
    print_line,
)

_MB = 1_000_000
# Longest excerpt of a line that is repeated after a failure, in characters.
_LONGEST_SHOWN = 200


@contextlib.contextmanager
def output_of(args: argparse.Namespace) -> Iterator[Output]:
    """Hold the destinations of the output; remove temporary files after an error."""
    output = _output(args)
    try:
        yield output
    except BaseException:
        _remove_temporary(output)
        raise


def _output(args: argparse.Namespace) -> Output:
    """Return the destinations of the output, and create the folder of log files."""
    folder, size = args.output_dir, args.log_size_mb
    if size is not None and (size < 1 or folder is None):
        where = "" if folder is not None else ", without --output-dir"
        raise ValueError(
            "--log-size-mb must be at least 1, and limits the files of --output-dir. "
            f"Received: --log-size-mb {size}{where}. Leave it out for no limit."
        )
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                "--output-dir must be a folder or a name for a new one. "
                f"Received: {folder} ({error.strerror}). Choose another place."
            ) from None
    is_of_chief = args.output == "chief"
    is_temporary = is_of_chief and folder is None
    if is_temporary:
        folder = Path(tempfile.mkdtemp(prefix="tfdist-output-"))
    return Output(
        tag=not args.no_tag_output,
        is_of_chief=is_of_chief,
        directory=folder,
        is_temporary=is_temporary,
        is_live=_is_live(args),
        is_json=args.log_format == "json",
        log_bytes=None if size is None else size * _MB,
    )


def _is_live(args: argparse.Namespace) -> bool:
    """Return whether a line of the terminal says how far the chief is."""
    is_plain = args.no_tag_output or args.log_format == "json"
    return not is_plain and has_terminal()


def end_of_files(output: Output, attempts: Sequence[Attempt]) -> list[str]:
    """Return where temporary log files are after a failure; otherwise remove them."""
    if all(attempt.result.reason == "done" for attempt in attempts):
        _remove_temporary(output)
    elif output.is_temporary:
        return [f"all that the processes have printed is in {output.directory}"]
    return []


def _remove_temporary(output: Output) -> None:
    """Remove log files for which no folder was given."""
    if output.is_temporary and output.directory is not None:
        shutil.rmtree(output.directory, ignore_errors=True)


def report_restart(result: RunResult, line: str, *, is_json: bool = False) -> None:
    """Print the last lines of the failed process, and why the job restarts."""
    print_lines([*_last_lines(result), line], is_json=is_json)


def report_end(
    restarts: Restarts, attempts: Sequence[Attempt], *, is_json: bool = False
) -> None:
    """Print the restarts and the failure, if any."""
    result = attempts[-1].result
    lines = restarts.report(attempts)
    if result.reason != "done":
        lines += [*_last_lines(result), result.headline(), *_hints(result)]
    print_lines(lines, is_json=is_json)


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


def print_lines(lines: Sequence[str], *, is_json: bool = False) -> None:
    """Print lines on stderr or as JSON, unquoted ones after the name of the command."""
    for line in lines:
        named = line if line.startswith(" ") else f"tfdist run: {line}"
        print_line(named, is_json=is_json)
