"""From the start of the ranks to the end of the last: who is ended, when and how."""

import contextlib
import functools
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence

from tfdist.launch.blame import Failure, first_failure
from tfdist.launch.output import Output, OutputPump
from tfdist.launch.plan import ProcessSpec
from tfdist.launch.process import GuardedProcess
from tfdist.launch.result import Exit, RunResult
from tfdist.launch.signals import ENDING_SIGNALS

# Two bytes among the signals that are news of the output; we catch neither as signal.
_OUTPUT_ENDED = 0
_OUTPUT_FAILED = int(signal.SIGPIPE)

# After a failure the other ranks may go on by themselves for this long: they say what
# they miss, and a rank whose traceback is already printed may take longer to exit than
# the peers that fail because of it.
_SETTLE_SECONDS = 1.0
# What Kubernetes and Slurm allow for saving a checkpoint after their SIGTERM.
_PREEMPTION_SECONDS = 30.0


class Supervisor:
    """Runs processes and decides what happens when one fails or somebody interferes.

    A run that must end goes through stages: the ranks are asked to end with a signal,
    and killed if they do not. At any time at most one next stage is due.

    Args:
        output: Where the output of the ranks goes.
        timeout_seconds: How long the run may take; None for ever.
        grace_seconds: How long ranks may take to end when they are asked to.
    """

    def __init__(
        self, output: Output, *, timeout_seconds: float | None, grace_seconds: float
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._grace_seconds = grace_seconds
        self._started = time.monotonic()
        self._next_stage: tuple[float, Callable[[], None]] | None = None
        self._reason, self._detail = "done", ""
        self._asked_to_end = float("inf")
        self._ended_ranks: tuple[int, ...] = ()
        self._processes: list[GuardedProcess] = []
        self._is_printing, self._was_killed = True, False
        self._ear, self.news = socket.socketpair()
        self.news.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ, self._hear)
        self._pump = OutputPump(
            output,
            on_end=lambda: self._tell(_OUTPUT_ENDED),
            on_error=lambda: self._tell(_OUTPUT_FAILED),
        )

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start every process.

        Args:
            specs: What to start, by rank.
        """
        for spec in specs:
            with self._pump.pipes() as (stdout, stderr):
                process = GuardedProcess(spec, stdout=stdout, stderr=stderr)
            self._processes.append(process)
            listen = functools.partial(self._listen, process)
            self._selector.register(process, selectors.EVENT_READ, listen)
        self._pump.start()
        if self._timeout_seconds is not None:
            self._plan(self._timeout_seconds, self._time_out)

    def wait(self) -> RunResult:
        """Wait until nothing of any rank is left and all that it printed is passed on.

        Returns:
            How the run has ended.
        """
        while self._has_work():
            for key, _ in self._selector.select(self._seconds_to_next_stage()):
                key.data()
            if self._next_stage is not None and self._seconds_to_next_stage() == 0:
                _, stage = self._next_stage
                self._next_stage = None
                stage()
        self._pump.join()
        return self._result()

    def close(self) -> None:
        """End at once whatever still runs, and wait until it is gone."""
        for process in self._processes:
            process.hang_up()
        for process in self._processes:
            process.wait()
        self._pump.close()
        self._selector.close()
        self._ear.close()
        self.news.close()

    def _has_work(self) -> bool:
        """Tell whether there is something to wait for."""
        if any(not process.is_gone for process in self._processes):
            return True
        # Who has had everything killed does not wait for a console that stands still.
        return self._is_printing and not self._was_killed

    def _plan(self, seconds: float, stage: Callable[[], None]) -> None:
        """Let a stage be due after some time, in place of any other."""
        self._next_stage = (time.monotonic() + seconds, stage)

    def _seconds_to_next_stage(self) -> float | None:
        """Return how long nothing is due; None if nothing ever is."""
        if self._next_stage is None:
            return None
        return max(0.0, self._next_stage[0] - time.monotonic())

    def _tell(self, news: int) -> None:
        """Wake the loop from another thread, as a signal would."""
        with contextlib.suppress(OSError):
            self.news.send(bytes([news]))

    def _hear(self) -> None:
        """Act on signals and on news of the output."""
        for news in self._ear.recv(64):
            if news == _OUTPUT_ENDED:
                self._is_printing = False
            elif news == _OUTPUT_FAILED:
                self._end_because("output", str(self._pump.error), signal.SIGTERM)
            elif news in ENDING_SIGNALS:
                self._interrupt(signal.Signals(news))
            elif news == signal.SIGTSTP:
                self._send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                self._send(signal.Signals(news))

    def _listen(self, process: GuardedProcess) -> None:
        """Take note of the end of a rank."""
        process.receive()
        if process.is_gone:
            self._selector.unregister(process)
        if process.exit_code and self._reason == "done":
            self._reason = "failed"
            self._plan(_SETTLE_SECONDS, self._end_peers)

    def _interrupt(self, number: signal.Signals) -> None:
        """Pass on a signal that ends the run; the second is an impatient one."""
        if self._reason != "done":
            self._kill()
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self._end_because("signal", number.name, number, _PREEMPTION_SECONDS)
        else:
            self._end_because("signal", number.name, number)

    def _time_out(self) -> None:
        """End the run because its time is up."""
        if self._running():
            detail = f"{self._timeout_seconds:g}"
            self._end_because("timeout", detail, signal.SIGTERM)

    def _end_because(
        self,
        reason: str,
        detail: str,
        number: signal.Signals,
        grace_seconds: float | None = None,
    ) -> None:
        """Ask all ranks to end, unless the run is ending for another reason already."""
        if self._reason == "done":
            self._reason, self._detail = reason, detail
            self._ask_to_end(number, grace_seconds or self._grace_seconds)

    def _end_peers(self) -> None:
        """Ask the ranks to end that have outlived a failure."""
        self._ask_to_end(signal.SIGTERM, self._grace_seconds)

    def _ask_to_end(self, number: signal.Signals, grace_seconds: float) -> None:
        """Send a signal to the ranks that run; kill them if they take too long."""
        self._asked_to_end = time.monotonic()
        self._ended_ranks = self._running()
        self._send(number)
        self._plan(grace_seconds, self._kill)

    def _kill(self) -> None:
        """Kill everything: TensorFlow in a collective is deaf to any other signal."""
        self._was_killed = True
        self._send(signal.SIGKILL)
        self._plan(self._grace_seconds, self._give_up)

    def _give_up(self) -> None:
        """Stop waiting for guardians that are stopped, or stuck with their rank."""
        for process in self._processes:
            process.kill_guardian()

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to all ranks."""
        for process in self._processes:
            process.send(number)

    def _running(self) -> tuple[int, ...]:
        """Return the ranks that have not ended."""
        return tuple(p.rank for p in self._processes if p.exit_code is None)

    def _result(self) -> RunResult:
        """Return how the run has ended."""
        exits = tuple(
            Exit(
                process.rank,
                -signal.SIGKILL if process.exit_code is None else process.exit_code,
                process.ended_seconds - self._started,
                self._pump.tail(process.rank),
            )
            for process in self._processes
        )
        failed_rank = self._first_failure() if self._reason == "failed" else None
        return RunResult(
            exits, self._reason, self._detail, failed_rank, self._ended_ranks
        )

    def _first_failure(self) -> int:
        """Return the rank that failed first, of those that were not asked to end."""
        return first_failure(
            Failure(p.rank, p.ended_seconds, self._pump.traceback_seconds(p.rank))
            for p in self._processes
            if p.exit_code and p.ended_seconds <= self._asked_to_end
        )
