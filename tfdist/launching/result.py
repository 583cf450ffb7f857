"""The result of a run, and the line that describes it."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.cluster import Task
from tfdist.launching.job import name_of

# The exit codes of a shell and of timeout(1).
EXIT_CODE_OF_SIGNAL = 128
EXIT_CODE_OF_TIMEOUT = 124
# That of ssh when the connection breaks.
EXIT_CODE_OF_LOST_HOST = 255
# A traceback older than this at the exit did not cause the failure.
TEARDOWN_SECONDS = 10.0
# The kernel closes the connections of a killed process before its exit is reported. On
# a busy machine peers fail in between.
_UNNOTICED_SECONDS = 3.0
_EXIT_CODES = {
    "done": 0,
    "failed": 1,
    "timeout": EXIT_CODE_OF_TIMEOUT,
    "signal": EXIT_CODE_OF_SIGNAL,
    "output": EXIT_CODE_OF_SIGNAL + signal.SIGPIPE,
    "hosts": EXIT_CODE_OF_LOST_HOST,
}
_HEADLINES = {
    "failed": "held up the others, and was ended",
    "timeout": "the run did not end within {} s",
    "signal": "{} ended the run",
    "output": "the output of the ranks could not be written: {}",
}
# Errors of a program, not of a machine.
_RECURRING = (
    "AttributeError",
    "ImportError",
    "IndentationError",
    "ModuleNotFoundError",
    "NameError",
    "SyntaxError",
    "TypeError",
    "ValueError",
)
# Errors of a debugger, and of input(), that read from no terminal.
_OF_TERMINAL = ("bdb.BdbQuit", "EOFError: EOF when reading a line")


@dataclass(frozen=True)
class Exit:
    """The exit of one process; `code` is the exit code, or minus a signal number."""

    rank: int
    code: int
    seconds: float
    tail: tuple[str, ...] = ()
    task: Task | None = None
    host: str | None = None

    @property
    def recurring_error(self) -> str:
        """The name of a Python error that a restart would meet again, or nothing."""
        name = self.tail[0].partition(":")[0] if self.code == 1 and self.tail else ""
        return name if name in _RECURRING else ""

    @property
    def wanted_terminal(self) -> bool:
        """Whether it ended because it has no terminal to read from."""
        return (
            self.code == 1 and any(self.tail) and self.tail[0].startswith(_OF_TERMINAL)
        )

    @property
    def name(self) -> str:
        """The name of the process: "rank 0", "chief", "worker 0" or "ps 0"."""
        return name_of(self.rank, self.task)

    def describe(self) -> str:
        """Return a short description of the exit."""
        how = how_it_ended(self.code)
        if self.code == -signal.SIGKILL:
            how += " (possibly by the kernel: out of memory)"
        where = "" if self.host is None else f" on {self.host}"
        return f"{self.name}{where} {how} after {self.seconds:.1f} s"


@dataclass(frozen=True)
class RunResult:
    """The result of a run: "done", "failed", "timeout", "signal", "output", "hosts"."""

    exits: tuple[Exit, ...]
    reason: str = "done"
    # The time limit, the name of the signal, or the error of the output or of hosts.
    detail: str = ""
    failed_rank: int | None = None
    # Ranks that were still running when the launcher ended the run.
    ended_ranks: tuple[int, ...] = ()
    # Whether the launcher received a signal to end, before or after a failure.
    was_interrupted: bool = False
    # Hosts without which nothing was started.
    unusable: tuple[str, ...] = ()

    @property
    def is_held_up(self) -> bool:
        """Whether the failed rank has held up the others, and was then ended."""
        return self.failed_rank in self.ended_ranks

    @property
    def exit_code(self) -> int:
        """The exit code of the launcher, by the rules of a shell."""
        if self.failed_rank is not None and not self.is_held_up:
            code = self.exit_of(self.failed_rank).code
            return code if code >= 0 else EXIT_CODE_OF_SIGNAL - code
        number = signal.Signals[self.detail] if self.reason == "signal" else 0
        return _EXIT_CODES[self.reason] + number

    def exit_of(self, rank: int) -> Exit:
        """Return the exit of a process; processes of other pods have none here."""
        return next(exit_ for exit_ in self.exits if exit_.rank == rank)

    def headline(self) -> str:
        """Return one line on why the run ended, empty after success."""
        if self.reason in ("done", "hosts"):
            return self.detail
        what = _HEADLINES[self.reason].format(self.detail)
        if self.failed_rank is not None:
            failed = self.exit_of(self.failed_rank)
            what = f"{failed.name} {what}" if self.is_held_up else failed.describe()
        ranks = (rank for rank in self.ended_ranks if rank != self.failed_rank)
        ended = [self.exit_of(rank) for rank in ranks]
        return f"{what}; {_were_ended(ended)}." if ended else f"{what}."


def failed_seconds(
    ended_seconds: float,
    traceback_seconds: float = float("inf"),
    *,
    was_killed: bool = False,
) -> float:
    """Return the time of a failure from those of the exit and of the last traceback."""
    # Python prints the traceback before it cleans up, and TensorFlow's cleanup can
    # outlast the time in which a peer notices the failure and aborts. No failure of a
    # peer causes a SIGKILL from outside the launcher.
    if was_killed:
        return ended_seconds - _UNNOTICED_SECONDS
    if ended_seconds - TEARDOWN_SECONDS < traceback_seconds < ended_seconds:
        return traceback_seconds
    return ended_seconds


def how_it_ended(code: int) -> str:
    """Describe an exit code, as in "failed with exit code 3"."""
    if code == 0:
        return "ended well"
    if code == EXIT_CODE_OF_SIGNAL + signal.SIGTERM:
        return f"was asked to stop, and ended with exit code {code}"
    if code > 0:
        return f"failed with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        # Real-time signals have no names.
        return f"was killed by signal {-code}"


def _were_ended(ended: Sequence[Exit]) -> str:
    """Describe the processes that the launcher ended."""
    *most, last = [exit_.name for exit_ in ended]
    if not most:
        return f"{last} was still running and was ended"
    if all(exit_.task is None for exit_ in ended):
        *numbers, last = [str(exit_.rank) for exit_ in ended]
        most = [f"ranks {numbers[0]}", *numbers[1:]]
    return f"{', '.join(most)} and {last} were still running and were ended"
