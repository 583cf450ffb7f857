"""The supervisor of a run, from the start of its first rank to the exit of its last."""

import functools
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster.launcher import (
    PROGRESS_VARIABLE,
    ask_for_stacks,
    read_culprit,
    read_saved_step,
)
from tfdist.launching.console import print_line
from tfdist.launching.events import ENDING_SIGNALS, PASSED_ON, Timers, WakeUp
from tfdist.launching.job import Limits, ProcessSpec
from tfdist.launching.output import Output, OutputPump
from tfdist.launching.process import GuardedProcess, RankProcess
from tfdist.launching.remote.host import RemoteHost, RemoteProcess
from tfdist.launching.restarts import Action, Policy
from tfdist.launching.result import TEARDOWN_SECONDS, Exit, RunResult, failed_seconds

# Output events share a socket with signals; neither number is a signal that we catch.
_OUTPUT_ENDED = 0
_OUTPUT_FAILED = int(signal.SIGPIPE)

# After a failure the other ranks may run this much longer to report their errors. The
# rank that caused it may exit later than peers that failed because of it.
_SETTLE_SECONDS = 1.0
# A process may notice the chief's exit before the launcher does. The notice of an early
# exit waits this long for the chief's.
_NOTICE_SECONDS = 5.0
# Rank 0 looks every second whether it is asked for stacks, and its agent on another
# host whether it has answered.
_STACKS_SECONDS = 5.0
# Kubernetes and Slurm allow this long for a checkpoint after SIGTERM.
_PREEMPTION_SECONDS = 30.0
# Ranks that make a strategy have met by then, unless the machine is slow.
_MEETING_SECONDS = 60.0
_NOT_MET = (
    "tfdist run: the {} processes {}. If none of them makes a strategy of tfdist, each "
    "runs by itself. Put this first: strategy = tfdist.strategies.AllReduceStrategy()"
)


class Supervisor:
    """Event loop of a run, which reacts to exits and signals."""

    # A run that must end goes through stages: a signal asks the ranks to end, then
    # SIGKILL forces them. At most one next stage is pending.
    def __init__(
        self,
        output: Output,
        limits: Limits,
        *,
        signals: socket.socket | None = None,
        remote: Mapping[str, RemoteHost] | None = None,
    ) -> None:
        self._limits, self._is_json = limits, output.is_json
        self._started = time.monotonic()
        self._timers = Timers()
        self._reason, self._detail = "done", ""
        self._asked_to_end = float("inf")
        self._ended_ranks: tuple[int, ...] = ()
        self._culprits: set[int] = set()
        self._to_start_again: set[int] = set()
        self._is_printing, self._was_killed = True, False
        self._was_interrupted = False
        self._wake_up = wake_up = WakeUp()
        self._selector = selectors.DefaultSelector()
        for source in [wake_up.reading, *([] if signals is None else [signals])]:
            receive = functools.partial(self._receive, source)
            self._selector.register(source, selectors.EVENT_READ, receive)
        self._pump = OutputPump(
            output,
            on_end=lambda: wake_up.send(_OUTPUT_ENDED),
            on_error=lambda: wake_up.send(_OUTPUT_FAILED),
        )
        self._remote = remote or {}
        # For each rank the latest process.
        self._processes: dict[int, RankProcess] = {}

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start all processes."""
        tasks = {spec.rank: spec.task for spec in specs}
        self._policy = Policy(tasks, restarts=self._limits.worker_restarts)
        for spec in specs:
            self._start(spec)
        self._pump.start()
        if self._limits.timeout_seconds is not None:
            self._timers.set_stage(self._limits.timeout_seconds, self._time_out)
        self._may_stay_apart = may_stay_apart(specs)
        self._timers.add(_MEETING_SECONDS, self._announce_no_meeting)

    def wait(self) -> RunResult:
        """Wait until all processes are gone and their output is passed on."""
        while self._has_work():
            for key, _ in self._selector.select(self._timers.seconds_to_next()):
                key.data()
            self._timers.run_due()
        self._pump.join()
        if self._reason == "done" and self._stays_apart():
            line = _NOT_MET.format(len(self._processes), "never met")
            print_line(line, is_json=self._is_json)
        return self._result()

    def close(self) -> None:
        """Kill all processes that still run, and wait until they are gone."""
        for process in self._processes.values():
            process.hang_up()
        for process in self._processes.values():
            process.wait()
        self._pump.close()
        self._selector.close()
        self._wake_up.close()

    def _start(self, spec: ProcessSpec) -> None:
        """Start a process or its replacement, and register for its exit."""
        if spec.rank in self._processes:
            self._processes[spec.rank].hang_up()
            self._processes[spec.rank].wait()
        else:
            self._pump.open(spec)
        stdout, stderr = self._pump.ends_of(spec.rank)
        process: RankProcess
        host = self._remote.get(spec.host or "")
        if host is not None:
            process = RemoteProcess(host, spec, stdout=stdout, stderr=stderr)
        else:
            process = GuardedProcess(spec, stdout=stdout, stderr=stderr)
        self._processes[spec.rank] = process
        on_report = functools.partial(self._on_report, process)
        self._selector.register(process, selectors.EVENT_READ, on_report)

    def _has_work(self) -> bool:
        """Return whether there is anything to wait for."""
        if not all(process.is_gone for process in self._processes.values()):
            return True
        # After a kill, do not wait for a blocked console.
        return self._is_printing and not self._was_killed

    def _receive(self, source: socket.socket) -> None:
        """React to signals, and to the end or failure of the output."""
        for number in source.recv(64):
            if number == _OUTPUT_ENDED:
                self._is_printing = False
            elif number == _OUTPUT_FAILED:
                self._end_because("output", str(self._pump.error), signal.SIGTERM)
            elif number in ENDING_SIGNALS:
                self._interrupt(signal.Signals(number))
            elif number == signal.SIGUSR2:
                self._ask_for_stacks()
            elif number == signal.SIGTSTP:
                self._send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)
            elif number in PASSED_ON:
                # Ranks that save their state and stop at SIGUSR1 are not started again.
                self._was_interrupted |= number == signal.SIGUSR1
                self._send(signal.Signals(number))

    def _ask_for_stacks(self) -> None:
        """Let rank 0 print what all ranks do, and say if it does not."""
        progress = self._progress()
        question = None if progress is None else ask_for_stacks(progress)
        first = self._processes[min(self._processes)]
        if isinstance(first, RemoteProcess):
            first.send(signal.SIGUSR2)

        def check() -> None:
            if question is None or question.exists():
                self._announce(
                    "tfdist run: no rank has answered SIGUSR2. Ranks do so once all "
                    "have made their strategy, without parameter servers."
                )

        self._timers.add(_STACKS_SECONDS, check)

    def _progress(self) -> Path | None:
        """Return the file of the last saved step, if the run has one."""
        name = self._processes[min(self._processes)].spec.env.get(PROGRESS_VARIABLE)
        return Path(name) if name else None

    def _on_report(self, process: RankProcess) -> None:
        """React to the exit of a rank, then to the end of its descendants."""
        has_ended_before = process.exit_code is not None
        process.receive()
        if not has_ended_before:
            self._judge(process)
        if process.is_gone:
            self._selector.unregister(process)
            # Not earlier: a leftover descendant may still hold its port.
            if process.rank in self._to_start_again and self._reason == "done":
                self._to_start_again.remove(process.rank)
                self._start(process.spec)
            else:
                self._pump.end(process.rank)

    def _judge(self, process: RankProcess) -> None:
        """Carry out the policy's decision, unless the run is already ending."""
        assert process.exit_code is not None
        action, notice = self._policy.judge(process.rank, process.exit_code)
        has_been_asked = process.ended_seconds > self._asked_to_end
        if action is Action.FAIL and not has_been_asked:
            self._culprits.add(process.rank)
        if self._reason != "done":
            return
        if notice:
            seconds = 0.0 if process.exit_code else _NOTICE_SECONDS
            announce = functools.partial(self._announce, f"tfdist run: {notice}")
            self._timers.add(seconds, announce)
        if action is Action.FAIL:
            self._reason = "failed"
            self._timers.set_stage(_SETTLE_SECONDS, self._settle)
        elif action is Action.START_AGAIN:
            self._to_start_again.add(process.rank)
        elif action is Action.FINISH:
            self._to_start_again.clear()
            self._timers.set_stage(self._limits.grace_seconds, self._end_peers)

    def _announce(self, notice: str) -> None:
        """Print a notice, unless the run is ending."""
        if self._reason == "done" and not self._policy.is_done:
            self._pump.announce(notice)

    def _announce_no_meeting(self) -> None:
        """Print a notice if no rank has made a strategy until now."""
        if self._stays_apart():
            what = f"have not met after {_MEETING_SECONDS:.0f} s"
            self._announce(_NOT_MET.format(len(self._processes), what))

    def _stays_apart(self) -> bool:
        """Return whether no rank of a Python program has made a strategy until now."""
        progress = self._progress() if self._may_stay_apart else None
        return progress is not None and read_saved_step(progress) is None

    def _interrupt(self, number: signal.Signals) -> None:
        """Forward a signal that ends the run; kill everything at the second Ctrl-C."""
        self._was_interrupted = True
        is_request = number in (signal.SIGTERM, signal.SIGHUP)
        if self._reason == "signal" and is_request:
            # Schedulers and `timeout` repeat it, and ranks may be saving their state.
            return
        if self._reason != "done":
            self._kill()
        elif is_request:
            self._end_because("signal", number.name, number, _PREEMPTION_SECONDS)
        else:
            self._end_because("signal", number.name, number)

    def _time_out(self) -> None:
        """End the run at its time limit."""
        if self._running():
            detail = f"{self._limits.timeout_seconds:g}"
            self._end_because("timeout", detail, signal.SIGTERM)

    def _end_because(
        self,
        reason: str,
        detail: str,
        number: signal.Signals,
        grace_seconds: float | None = None,
    ) -> None:
        """Ask all ranks to end, unless the run is already ending."""
        if self._reason == "done":
            self._reason, self._detail = reason, detail
            self._ask_to_end(number, grace_seconds or self._limits.grace_seconds)

    def _settle(self) -> None:
        """Ask the remaining ranks to end, once one that failed earlier has ended."""
        first = min(map(self._failed_seconds, self._culprits))
        raised = (self._pump.traceback_seconds(rank) for rank in self._running())
        earliest = first - TEARDOWN_SECONDS
        is_ending = any(earliest < seconds < first for seconds in raised)
        if is_ending and time.monotonic() < first + TEARDOWN_SECONDS:
            self._timers.set_stage(_SETTLE_SECONDS, self._settle)
        else:
            self._end_peers()

    def _end_peers(self) -> None:
        """Ask the remaining ranks to end, after a failure or after the chief."""
        self._ask_to_end(signal.SIGTERM, self._limits.grace_seconds)

    def _ask_to_end(self, number: signal.Signals, grace_seconds: float) -> None:
        """Send a signal to the running ranks, and schedule SIGKILL."""
        self._asked_to_end = time.monotonic()
        self._ended_ranks = self._running()
        self._send(number)
        self._timers.set_stage(grace_seconds, self._kill)

    def _kill(self) -> None:
        """Kill everything: in a collective, TensorFlow handles no other signal."""
        # The output of a successful chief is still passed on.
        self._was_killed = self._reason != "done"
        self._send(signal.SIGKILL)
        self._timers.set_stage(self._limits.grace_seconds, self._give_up)

    def _give_up(self) -> None:
        """Kill the guardians, which may be stopped or hang with their rank."""
        for process in self._processes.values():
            process.kill_guardian()

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        for process in self._processes.values():
            process.send(number)

    def _running(self) -> tuple[int, ...]:
        """Return the ranks of the processes that still run."""
        processes = self._processes.values()
        return tuple(process.rank for process in processes if process.exit_code is None)

    def _result(self) -> RunResult:
        """Return the result of the run."""
        failed_rank = self._failed_rank() if self._reason == "failed" else None
        exits = [
            Exit(
                process.rank,
                -signal.SIGKILL if process.exit_code is None else process.exit_code,
                process.ended_seconds - self._started,
                self._last_lines(process),
                process.spec.task,
                process.spec.host,
            )
            for process in self._processes.values()
        ]
        return RunResult(
            tuple(exits),
            self._reason,
            self._detail,
            failed_rank,
            self._ended_ranks,
            self._was_interrupted,
        )

    def _failed_rank(self) -> int:
        """Return the rank that failed first or held up the others; they followed."""
        progress = self._progress()
        culprit = None if progress is None else read_culprit(progress)
        if culprit in self._processes and self._processes[culprit].exit_code:
            return culprit
        suspects = self._policy.suspects(self._culprits)
        return min(sorted(suspects), key=self._failed_seconds)

    def _last_lines(self, process: RankProcess) -> tuple[str, ...]:
        """Return the error of a process that ended in one, or its last lines."""
        error = self._pump.last_error(process.rank) if process.exit_code == 1 else ()
        return error or self._pump.tail(process.rank)

    def _failed_seconds(self, rank: int) -> float:
        """Return the time at which a rank failed."""
        process = self._processes[rank]
        was_killed = (
            process.exit_code == -signal.SIGKILL and not process.is_to_be_killed
        )
        traceback = self._pump.traceback_seconds(rank)
        return failed_seconds(process.ended_seconds, traceback, was_killed=was_killed)


def may_stay_apart(specs: Sequence[ProcessSpec]) -> bool:
    """Return whether ranks here may run a Python program without a strategy."""
    first = specs[0]
    is_for_tfdist = first.argv[0] == sys.executable and first.collective != "horovod"
    is_alike = first.task is None and first.host is None and first.rank == 0
    return len(specs) > 1 and is_alike and is_for_tfdist
