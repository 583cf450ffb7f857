"""The launcher's own lines in `tfdist run`: restarts and the end of the job."""

from collections.abc import Sequence

from tfdist.launch import Attempt, Restarts, RunResult, print_line

# Longest excerpt of a line that is repeated after a failure, in characters.
_LONGEST_SHOWN = 200


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
