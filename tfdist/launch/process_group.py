"""The process group of a run: starts, signals and exits of its processes."""

import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tfdist.launch.job import ProcessSpec
from tfdist.launch.output import OutputPump
from tfdist.launch.process import GuardedProcess, RankProcess
from tfdist.launch.remote.host import RemoteHost, RemoteProcess
from tfdist.launch.result import Exit

# A traceback older than this at the exit did not cause the failure.
_TEARDOWN_SECONDS = 10.0
# The kernel closes the connections of a killed process before its exit is reported. On
# a busy machine peers fail in between.
_UNNOTICED_SECONDS = 1.0


class ProcessGroup:
    """All processes of a run: for each rank the latest one."""

    def __init__(
        self, pump: OutputPump, remote: Mapping[str, RemoteHost] | None = None
    ) -> None:
        self._pump = pump
        self._remote = remote or {}
        self._processes: dict[int, RankProcess] = {}

    def start(self, spec: ProcessSpec) -> RankProcess:
        """Start a process, replacing an earlier one of the same rank."""
        if spec.rank in self._processes:
            self._processes[spec.rank].hang_up()
            self._processes[spec.rank].wait()
        else:
            self._pump.open(spec)
        stdout, stderr = self._pump.ends_of(spec.rank)
        ranks = self._remote.get(spec.host or "")
        process: RankProcess
        if ranks is None:
            process = GuardedProcess(spec, stdout=stdout, stderr=stderr)
        else:
            process = RemoteProcess(ranks, spec, stdout=stdout, stderr=stderr)
        self._processes[spec.rank] = process
        return process

    def close(self) -> None:
        """Kill all processes that still run, and wait until they are gone."""
        for process in self._processes.values():
            process.hang_up()
        for process in self._processes.values():
            process.wait()

    @property
    def is_gone(self) -> bool:
        """True if no process or descendant is left."""
        return all(process.is_gone for process in self._processes.values())

    def running(self) -> tuple[int, ...]:
        """Return the ranks of the processes that still run."""
        processes = self._processes.values()
        return tuple(process.rank for process in processes if process.exit_code is None)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        for process in self._processes.values():
            process.send(number)

    def give_up(self) -> None:
        """Kill the guardians, which may be stopped or hang with their rank."""
        for process in self._processes.values():
            process.kill_guardian()

    def exits(self, started_seconds: float) -> tuple[Exit, ...]:
        """Return the exit of each process, timed from the start of the run."""
        return tuple(
            Exit(
                process.rank,
                -signal.SIGKILL if process.exit_code is None else process.exit_code,
                process.ended_seconds - started_seconds,
                self._pump.tail(process.rank),
                process.spec.task,
                process.spec.host,
            )
            for process in self._processes.values()
        )

    def first_failure(self, among: Collection[int]) -> int:
        """Return the rank that failed first among the given ranks, at least one."""
        return first_failure(
            Failure(
                p.rank,
                p.ended_seconds,
                self._pump.traceback_seconds(p.rank),
                was_killed=p.exit_code == -signal.SIGKILL and not p.is_to_be_killed,
            )
            for p in self._processes.values()
            if p.rank in among
        )


@dataclass(frozen=True)
class Failure:
    """The times of a rank's exit and of its last traceback, on one clock."""

    rank: int
    ended_seconds: float
    traceback_seconds: float = float("inf")
    # A SIGKILL from outside the launcher, which no failure of a peer causes.
    was_killed: bool = False

    @property
    def failed_seconds(self) -> float:
        """The time of the failure: that of the traceback if it is recent."""
        # Python prints the traceback before it cleans up, and TensorFlow's cleanup can
        # outlast the time in which a peer notices the failure and aborts.
        if self.was_killed:
            return self.ended_seconds - _UNNOTICED_SECONDS
        earliest = self.ended_seconds - _TEARDOWN_SECONDS
        if earliest < self.traceback_seconds < self.ended_seconds:
            return self.traceback_seconds
        return self.ended_seconds


def first_failure(failures: Iterable[Failure]) -> int:
    """Return the rank that failed first; the others followed."""
    return min(failures, key=lambda failure: failure.failed_seconds).rank
