"""How a run has ended, and how to say it in one line."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.cluster import Task
from tfdist.launch.roles import name_of

# What a shell, and timeout(1), return.
EXIT_CODE_OF_SIGNAL = 128
EXIT_CODE_OF_TIMEOUT = 124


@dataclass(frozen=True)
class Exit:
    """How one process has ended.

    Args:
        rank: Its number among the processes of the run, from 0.
        code: Its exit code, or minus the number of the signal that killed it.
        seconds: When that was, from the start of the run.
        tail: The last lines that it printed. Default none.
        task: Its task in a job with parameter servers. Default None: one of several
            ranks that are all alike.
        host: The host it was on. Default None: this machine, of which nobody speaks.

    Example:
        >>> Exit(0, -15, 2.5).describe()
        'rank 0 was killed by SIGTERM after 2.5 s'
    """

    rank: int
    code: int
    seconds: float
    tail: tuple[str, ...] = ()
    task: Task | None = None
    host: str | None = None

    @property
    def name(self) -> str:
        """What the process is called: "rank 0", "chief", "worker 0" or "ps 0"."""
        return name_of(self.rank, self.task)

    def describe(self) -> str:
        """Say how the process has ended, in a few words."""
        how = how_it_ended(self.code)
        if self.code == -signal.SIGKILL:
            how += " (by the kernel, if by nobody else: memory ran out)"
        where = "" if self.host is None else f" on {self.host}"
        return f"{self.name}{where} {how} after {self.seconds:.1f} s"


@dataclass(frozen=True)
class RunResult:
    """How a run has ended.

    Args:
        exits: How each process has ended, by its number; of a worker that was started
            again, how it has ended last.
        reason: Why the run ended: "done", "failed", "timeout", "signal" or "output".
        detail: The time limit in seconds, the name of the signal, or what could not be
            written. Default none.
        failed_rank: The number of the process that failed first, if the reason is
            "failed".
        ended_ranks: Those that were still running and had to be ended. Default none.
        was_interrupted: Whether a signal to the launcher asked for the end, before or
            after a failure. Default False.

    Example:
        >>> run = RunResult((Exit(0, 0, 1.0), Exit(1, 3, 2.0)), "failed", failed_rank=1)
        >>> run.exit_code, run.headline()
        (3, 'rank 1 failed with exit code 3 after 2.0 s.')
    """

    exits: tuple[Exit, ...]
    reason: str = "done"
    detail: str = ""
    failed_rank: int | None = None
    ended_ranks: tuple[int, ...] = ()
    was_interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """What the launcher returns, as a shell would.

        0 if all is well; the code of the process that failed first, or 128 and the
        number of its signal; 124 when the time was up; 128 and the number of the signal
        that ended the run, SIGPIPE if nobody reads the output any more.
        """
        if self.failed_rank is not None:
            code = self.exit_of(self.failed_rank).code
            return code if code >= 0 else EXIT_CODE_OF_SIGNAL - code
        match self.reason:
            case "timeout":
                return EXIT_CODE_OF_TIMEOUT
            case "signal":
                return EXIT_CODE_OF_SIGNAL + signal.Signals[self.detail]
            case "output":
                return EXIT_CODE_OF_SIGNAL + signal.SIGPIPE
        return 0

    def exit_of(self, rank: int) -> Exit:
        """Return how a process has ended.

        Args:
            rank: Its number among the processes of the job, some of which may be
                elsewhere.

        Returns:
            Its end.

        Example:
            >>> RunResult((Exit(2, 0, 1.0), Exit(3, 9, 1.0))).exit_of(3).code
            9
        """
        return next(exit_ for exit_ in self.exits if exit_.rank == rank)

    def headline(self) -> str:
        """Say in one line why the run has ended; nothing if all is well."""
        match self.reason:
            case "failed":
                assert self.failed_rank is not None
                what = self.exit_of(self.failed_rank).describe()
            case "timeout":
                what = f"the run did not end within {self.detail} s"
            case "signal":
                what = f"{self.detail} ended the run"
            case "output":
                what = f"the output of the ranks could not be written: {self.detail}"
            case _:
                return ""
        if not self.ended_ranks:
            return f"{what}."
        ended = [self.exit_of(rank) for rank in self.ended_ranks]
        return f"{what}; {_were_ended(ended)}."


def how_it_ended(code: int) -> str:
    """Say how a process has ended.

    Args:
        code: Its exit code, or minus the number of the signal that killed it.

    Returns:
        Words to follow its name.

    Example:
        >>> how_it_ended(3), how_it_ended(-9)
        ('failed with exit code 3', 'was killed by SIGKILL')
    """
    if code == 0:
        return "ended well"
    if code > 0:
        return f"failed with exit code {code}"
    return f"was killed by {_name_of(-code)}"


def _were_ended(ended: Sequence[Exit]) -> str:
    """Say which processes did not end by themselves."""
    *most, last = [exit_.name for exit_ in ended]
    if not most:
        return f"{last} was still running and was ended"
    if all(exit_.task is None for exit_ in ended):
        *numbers, last = [str(exit_.rank) for exit_ in ended]
        most = [f"ranks {numbers[0]}", *numbers[1:]]
    return f"{', '.join(most)} and {last} were still running and were ended"


def _name_of(number: int) -> str:
    """Return the name of a signal; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
