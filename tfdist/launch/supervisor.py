"""From the start of the ranks to the end of the last: who is ended, when and how."""

import functools
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence

from tfdist.launch.agenda import Agenda
from tfdist.launch.ear import Ear
from tfdist.launch.group import ProcessGroup
from tfdist.launch.output import Output, OutputPump
from tfdist.launch.policy import Action, Policy
from tfdist.launch.process import RankProcess
from tfdist.launch.remote import RemoteRanks
from tfdist.launch.result import RunResult
from tfdist.launch.signals import ENDING_SIGNALS
from tfdist.launch.spec import ProcessSpec

# Two bytes among the signals that are news of the output; we catch neither as signal.
_OUTPUT_ENDED = 0
_OUTPUT_FAILED = int(signal.SIGPIPE)

# After a failure the other ranks may go on by themselves for this long: they say what
# they miss, and a rank whose traceback is already printed may take longer to exit than
# the peers that fail because of it.
_SETTLE_SECONDS = 1.0
# Who ends well may have seen the chief's end before the launcher. If the chief still
# runs after this time, it is said.
_NOTICE_SECONDS = 5.0
# What Kubernetes and Slurm allow for saving a checkpoint after their SIGTERM.
_PREEMPTION_SECONDS = 30.0


class Supervisor:
    """Runs processes and does what must be when one ends or somebody interferes.

    What the end of a process means is for `Policy` to say. A run that must end goes
    through stages: the ranks are asked to end with a signal, and killed if they do not.
    At any time at most one next stage is due.

    Args:
        output: Where the output of the ranks goes.
        timeout_seconds: How long the run may take; None for ever.
        grace_seconds: How long ranks may take to end when they are asked to.
        restarts: How many times workers are started again, in a job that has some.
        signals: Where signals to the launcher are read as bytes. Default: nowhere.
        remote: The hosts that are not this one, by name. Default none.
    """

    def __init__(
        self,
        output: Output,
        *,
        timeout_seconds: float | None,
        grace_seconds: float,
        restarts: int,
        signals: socket.socket | None = None,
        remote: Mapping[str, RemoteRanks] | None = None,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._grace_seconds = grace_seconds
        self._restarts = restarts
        self._started = time.monotonic()
        self._agenda = Agenda()
        self._reason, self._detail = "done", ""
        self._asked_to_end = float("inf")
        self._ended_ranks: tuple[int, ...] = ()
        self._culprits: set[int] = set()
        self._to_start_again: set[int] = set()
        self._is_printing, self._was_killed = True, False
        self._was_interrupted = False
        self.ear = Ear(signals)
        self._selector = selectors.DefaultSelector()
        for source in self.ear.sources:
            hear = functools.partial(self._hear, source)
            self._selector.register(source, selectors.EVENT_READ, hear)
        self._pump = OutputPump(
            output,
            on_end=lambda: self.ear.tell(_OUTPUT_ENDED),
            on_error=lambda: self.ear.tell(_OUTPUT_FAILED),
        )
        self._processes = ProcessGroup(self._pump, remote)

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start every process.

        Args:
            specs: What to start, by rank.
        """
        tasks = {spec.rank: spec.task for spec in specs}
        self._policy = Policy(tasks, restarts=self._restarts)
        for spec in specs:
            self._start(spec)
        self._pump.start()
        if self._timeout_seconds is not None:
            self._agenda.plan(self._timeout_seconds, self._time_out)

    def wait(self) -> RunResult:
        """Wait until nothing of any rank is left and all that it printed is passed on.

        Returns:
            How the run has ended.
        """
        while self._has_work():
            for key, _ in self._selector.select(self._agenda.seconds_to_next()):
                key.data()
            self._agenda.do_due()
        self._pump.join()
        return self._result()

    def close(self) -> None:
        """End at once whatever still runs, and wait until it is gone."""
        self._processes.close()
        self._pump.close()
        self._selector.close()
        self.ear.close()

    def _start(self, spec: ProcessSpec) -> None:
        """Start a process, and listen for its end."""
        process = self._processes.start(spec)
        listen = functools.partial(self._listen, process)
        self._selector.register(process, selectors.EVENT_READ, listen)

    def _has_work(self) -> bool:
        """Tell whether there is something to wait for."""
        if not self._processes.is_gone:
            return True
        # Who has had everything killed does not wait for a console that stands still.
        return self._is_printing and not self._was_killed

    def _hear(self, source: socket.socket) -> None:
        """Act on signals and on news of the output."""
        for news in source.recv(64):
            if news == _OUTPUT_ENDED:
                self._is_printing = False
            elif news == _OUTPUT_FAILED:
                self._end_because("output", str(self._pump.error), signal.SIGTERM)
            elif news in ENDING_SIGNALS:
                self._interrupt(signal.Signals(news))
            elif news == signal.SIGTSTP:
                self._processes.send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                self._processes.send(signal.Signals(news))

    def _listen(self, process: RankProcess) -> None:
        """Take note of the end of a rank, then of the end of all that came from it."""
        has_ended_before = process.exit_code is not None
        process.receive()
        if not has_ended_before:
            self._judge(process)
        if process.is_gone:
            self._selector.unregister(process)
            # Not before: what it has left behind may hold its address.
            if process.rank in self._to_start_again and self._reason == "done":
                self._to_start_again.remove(process.rank)
                self._start(process.spec)
            else:
                self._pump.end(process.rank)

    def _judge(self, process: RankProcess) -> None:
        """Do what the end of a rank asks for, unless the run is ending anyway."""
        assert process.exit_code is not None
        decision = self._policy.judge(process.rank, process.exit_code)
        has_been_asked = process.ended_seconds > self._asked_to_end
        if decision.action is Action.FAIL and not has_been_asked:
            self._culprits.add(process.rank)
        if self._reason != "done":
            return
        if decision.notice:
            seconds = 0.0 if process.exit_code else _NOTICE_SECONDS
            announce = functools.partial(self._announce, decision.notice)
            self._agenda.add(seconds, announce)
        if decision.action is Action.FAIL:
            self._reason = "failed"
            self._agenda.plan(_SETTLE_SECONDS, self._end_peers)
        elif decision.action is Action.START_AGAIN:
            self._to_start_again.add(process.rank)
        elif decision.action is Action.FINISH:
            self._to_start_again.clear()
            self._agenda.plan(self._grace_seconds, self._end_peers)

    def _announce(self, notice: str) -> None:
        """Tell the user what has become of a process that the job can do without."""
        if self._reason == "done" and not self._policy.is_done:
            self._pump.announce(f"tfdist run: {notice}")

    def _interrupt(self, number: signal.Signals) -> None:
        """Pass on a signal that ends the run; the second is an impatient one."""
        self._was_interrupted = True
        if self._reason != "done":
            self._kill()
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self._end_because("signal", number.name, number, _PREEMPTION_SECONDS)
        else:
            self._end_because("signal", number.name, number)

    def _time_out(self) -> None:
        """End the run because its time is up."""
        if self._processes.running():
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
        self._ended_ranks = self._processes.running()
        self._processes.send(number)
        self._agenda.plan(grace_seconds, self._kill)

    def _kill(self) -> None:
        """Kill everything: TensorFlow in a collective is deaf to any other signal."""
        # What a chief that has ended well has printed is passed on all the same.
        self._was_killed = self._reason != "done"
        self._processes.send(signal.SIGKILL)
        self._agenda.plan(self._grace_seconds, self._processes.give_up)

    def _result(self) -> RunResult:
        """Return how the run has ended."""
        failed_rank = None
        if self._reason == "failed":
            suspects = self._policy.suspects(self._culprits)
            failed_rank = self._processes.first_failure(suspects)
        return RunResult(
            self._processes.exits(self._started),
            self._reason,
            self._detail,
            failed_rank,
            self._ended_ranks,
            self._was_interrupted,
        )
