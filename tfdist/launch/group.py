"""The processes of a run taken together: started, signalled, asked how they ended."""

import signal
from collections.abc import Collection, Mapping

from tfdist.launch.blame import Failure, first_failure
from tfdist.launch.output import OutputPump
from tfdist.launch.process import GuardedProcess, RankProcess
from tfdist.launch.remote import RemoteRanks
from tfdist.launch.remote_process import RemoteProcess
from tfdist.launch.result import Exit
from tfdist.launch.spec import ProcessSpec


class ProcessGroup:
    """All processes of a run, of each the one that was started last.

    Args:
        pump: Where their output goes.
        remote: The hosts that are not this one, by name. Default none.
    """

    def __init__(
        self, pump: OutputPump, remote: Mapping[str, RemoteRanks] | None = None
    ) -> None:
        self._pump = pump
        self._remote = remote or {}
        self._processes: dict[int, RankProcess] = {}

    def start(self, spec: ProcessSpec) -> RankProcess:
        """Start a process, in place of one with that number that is gone.

        Args:
            spec: What to start.

        Returns:
            The process.
        """
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
        """End at once whatever still runs, and wait until it is gone."""
        for process in self._processes.values():
            process.hang_up()
        for process in self._processes.values():
            process.wait()

    @property
    def is_gone(self) -> bool:
        """Whether nothing of any process is left."""
        return all(process.is_gone for process in self._processes.values())

    def running(self) -> tuple[int, ...]:
        """Return the numbers of the processes that have not ended."""
        processes = self._processes.values()
        return tuple(process.rank for process in processes if process.exit_code is None)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes.

        Args:
            number: The signal.
        """
        for process in self._processes.values():
            process.send(number)

    def give_up(self) -> None:
        """Stop waiting for guardians that are stopped, or stuck with their rank."""
        for process in self._processes.values():
            process.kill_guardian()

    def exits(self, started_seconds: float) -> tuple[Exit, ...]:
        """Return how each process has ended.

        Args:
            started_seconds: When the run was started, on the monotonic clock.

        Returns:
            The ends, in the order in which the processes were started.
        """
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
        """Return the number of the process that failed first.

        Args:
            among: The numbers of those that have failed and may be the cause, at least
                one.

        Returns:
            Its number.
        """
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
