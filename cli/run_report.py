"""What `tfdist run` says on stderr when a job is started again, and when it is over."""

import sys
from collections.abc import Sequence

from tfdist.launch import Attempt, Restarts, RunResult, report

# Characters of each line that is repeated after a failure.
_LONGEST_SHOWN = 300


def report_restart(result: RunResult, line: str) -> None:
    """Say why a job is started again, and what the process printed last that failed.

    Args:
        result: How the job has ended.
        line: What to say of that and of the restart.
    """
    _print([*_last_lines(result), line])


def report_end(restarts: Restarts, attempts: Sequence[Attempt]) -> None:
    """Say what the restarts were for, then who failed and how; nothing if all is well.

    Args:
        restarts: How often the job may be started again.
        attempts: All its starts.
    """
    result = attempts[-1].result
    lines = report(restarts, attempts)
    if result.reason != "done":
        lines += [*_last_lines(result), result.headline()]
    _print(lines)


def _last_lines(result: RunResult) -> list[str]:
    """Return what the process printed last that failed first, with a heading."""
    if result.failed_rank is None:
        return []
    failed = result.exit_of(result.failed_rank)
    shown = [f"    {line[:_LONGEST_SHOWN]}" for line in failed.tail]
    return [f"the last lines of {failed.name}:", *shown] if shown else []


def _print(lines: Sequence[str]) -> None:
    """Print lines on stderr, with the name of the command before our own."""
    for line in lines:
        is_quoted = line.startswith(" ")
        print(line if is_quoted else f"tfdist run: {line}", file=sys.stderr)
