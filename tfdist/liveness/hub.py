"""Rank 0's end of the lifelines: heartbeats, exchanges and stall diagnostics."""

import json
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.launcher import Launcher
from tfdist.liveness.diagnosis import Failure, Report, ended, find_failure
from tfdist.liveness.stacks import Snapshot, describe, list_stacks
from tfdist.recorder.step_times import StepTimes, advice_on, slow_rank
from tfdist.rendezvous.handshake import RankName
from tfdist.rendezvous.wire import CHUNK_BYTES, Message, Reader, pack

BEAT_SECONDS = 1.0
# One call may hold Python's lock for long. The connection of a dead process closes at
# once, its watchdog kills a stopped one, and the kernel notices a cut network, so only
# a container that is stopped as a whole is silent for this long. Both ends count the
# beats for which they wait, so that a job that was stopped with them goes on.
SILENCE_SECONDS = 60.0
# A rank answers from a thread of its own, unless Python does not run there.
_ANSWER_SECONDS = 3.0


@dataclass
class _Survey:
    """A question to all ranks for their stacks, before a failure or on demand."""

    failure: Failure | None
    deadline: float
    snapshots: dict[int, Snapshot]


class _Line:
    """Rank 0's end of the lifeline of one rank."""

    def __init__(self, connection: socket.socket) -> None:
        # A rank that reads nothing must not delay messages to the others.
        connection.setblocking(False)
        self.connection = connection
        self.reader = Reader()
        self.unsent: deque[memoryview] = deque()
        # Our beats since it has sent something.
        self.quiet = 0

    def send(self) -> None:
        """Send as much as the connection takes."""
        try:
            while self.unsent:
                count = self.connection.send(self.unsent[0])
                if count < len(self.unsent[0]):
                    self.unsent[0] = self.unsent[0][count:]
                else:
                    self.unsent.popleft()
        except BlockingIOError:
            return
        except OSError:  # The next read finds the connection closed and reports it.
            self.unsent.clear()


class Hub:
    """Thread of rank 0 that serves the lifelines of all ranks, its own included."""

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        names: Mapping[int, RankName],
        timeout_seconds: float,
    ) -> None:
        self._lines = {rank: _Line(each) for rank, each in connections.items()}
        # A child would hold the connections open, also when this process is gone.
        for each in connections.values():
            os.register_at_fork(after_in_child=each.close)
        self._names, self._launcher = names, Launcher()
        self._timeout_seconds = timeout_seconds
        self._reports = {rank: Report() for rank in connections}
        self._left: set[int] = set()
        self._values: dict[str, dict[int, Any]] = {}
        self._times: dict[int, StepTimes] = {}
        self._called_slow: set[tuple[int, str]] = set()
        self._failed = False
        self._survey: _Survey | None = None
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(
            target=self._serve, name="tfdist hub", daemon=True
        )
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait until every rank has left, so that none finds its hub gone."""
        self._thread.join(timeout_seconds)

    def _serve(self) -> None:
        """Serve all connections until the last one closes."""
        with self._selector as selector:
            for rank, line in self._lines.items():
                selector.register(line.connection, selectors.EVENT_READ, rank)
            next_beat = time.monotonic()
            while self._lines:
                wait = max(0.0, next_beat - time.monotonic())
                for key, events in selector.select(wait):
                    if events & selectors.EVENT_WRITE:
                        self._send([key.data])
                    if events & selectors.EVENT_READ:
                        self._read(key.data)
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + BEAT_SECONDS
                    self._beat()

    def _read(self, rank: int) -> None:
        """Read from a rank; its lifeline ends with the connection or with nonsense."""
        line = self._lines[rank]
        how = "is gone: its connection closed"
        try:
            data = line.connection.recv(CHUNK_BYTES)
            line.quiet = 0
            for message in line.reader.feed(data):
                self._handle(rank, message)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            data, how = b"", "has sent a malformed message"
        if not data:
            self._selector.unregister(line.connection)
            self._lines.pop(rank).connection.close()
            if rank not in self._left:
                self._lose(rank, how)

    def _handle(self, rank: int, message: Message) -> None:
        """Act on a message from a rank."""
        kind = message["kind"]
        if kind in ("beat", "bye"):
            self._reports[rank] = _report(**message["report"])
        if kind == "bye":
            self._leave(rank, str(message["error"]))
        elif kind == "error":
            text = str(message["text"]).rstrip(".")
            self._lose(rank, f"has failed with {text}")
        elif kind == "told":
            about = {"what": str(message["what"]), "call": int(message["call"])}
            told = {"kind": "told", **about, "value": message["value"]}
            self._send(self._lines, told)
        elif kind == "stop":
            self._send(self._lines, {"kind": "stop"})
        elif kind == "stacks":
            self._answer(rank, message)
        elif kind == "exchange":
            self._exchange(rank, message)
        elif kind == "times":
            times = {name: float(each) for name, each in message["times"].items()}
            self._compare(rank, StepTimes(**times))
        elif kind != "beat":
            raise LookupError(kind)

    def _leave(self, rank: int, error: str) -> None:
        """Expect no more from a rank, and fail if it has ended with an error."""
        self._left.add(rank)
        if error:
            self._lose(rank, f"has ended with {error.rstrip('.')}")
        elif rank == 0:
            # This process may end before the next beat.
            self._send(self._lines, {"kind": "beat", "call": None})

    def _exchange(self, rank: int, message: Message) -> None:
        """Store a value, and send those of all ranks once they are there."""
        key = message["key"]
        json.loads(key)[0]  # Read again when a rank has left it out.
        values = self._values.setdefault(key, {})
        values[rank] = message["value"]
        if len(values) == len(self._names):
            del self._values[key]
            answer = {"kind": "values", "key": key, "values": []}
            here = set(self._lines)
            getting = here & {0} if message.get("to_chief") else here
            self._send(here - getting, answer)
            answer["values"] = [values[rank] for rank in sorted(values)]
            self._send(getting, answer)

    def _compare(self, rank: int, times: StepTimes) -> None:
        """Store the usual times of a rank, and say once that one is slow, and why."""
        self._times[rank] = times
        if len(self._times) < len(self._names):
            return
        slow = slow_rank([self._times[each] for each in sorted(self._times)])
        slowest = max(self._times, key=lambda each: self._times[each].own)
        self._launcher.note_slowest(self._names[slowest].rank)
        self._times.clear()
        if slow is not None and (slow.rank, slow.cause) not in self._called_slow:
            self._called_slow.add((slow.rank, slow.cause))
            _print(f"tfdist: over many steps, {advice_on(slow)}.")

    def _beat(self) -> None:
        """Send a heartbeat, and check for silent and stalled ranks."""
        call = None if 0 in self._left else self._reports[0].call
        # What is being sent shows as well that rank 0 is alive.
        idle = [rank for rank, line in self._lines.items() if not line.unsent]
        self._send(idle, {"kind": "beat", "call": call})
        for rank in set(self._lines) - self._left:
            self._lines[rank].quiet += 1
            if self._lines[rank].quiet * BEAT_SECONDS > SILENCE_SECONDS:
                how = f"has been silent for {SILENCE_SECONDS:.0f} s"
                self._lose(rank, how, culprit=rank)
        for key, values in self._values.items():
            for rank in self._left - set(values):
                name = self._names[rank]
                self._fail(ended(name, "others wait", json.loads(key)[0]))
        reports, seconds = self._reports, self._timeout_seconds
        failure = find_failure(reports, self._left, self._names, seconds)
        if failure is not None:
            self._fail(failure)
        if self._survey is not None:
            self._end_survey(self._survey)
        elif self._launcher.asks_for_stacks():
            self._begin_survey()

    def _begin_survey(self, failure: Failure | None = None) -> None:
        """Ask all ranks for their stacks."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        self._survey = _Survey(failure, deadline, {})
        self._send(self._lines, {"kind": "stacks"})

    def _answer(self, rank: int, message: Message) -> None:
        """Store what a rank does."""
        stacks = tuple(map(str, message["stacks"]))
        if self._survey is not None:
            doing, reads_input = str(message["doing"]), bool(message["reads_input"])
            self._survey.snapshots[rank] = Snapshot(doing, stacks, reads_input)

    def _end_survey(self, survey: _Survey) -> None:
        """Print what the ranks do, once all have answered or time is up."""
        asked = {rank: Snapshot() for rank in set(self._lines) - self._left}
        if set(asked) - set(survey.snapshots) and time.monotonic() < survey.deadline:
            return
        self._survey = None
        asked |= survey.snapshots
        waiting = {
            rank: _position(self._reports[rank])
            for rank in asked
            if self._reports[rank].inside
        }
        names = {rank: self._names[rank].short for rank in asked}
        sentence = describe(asked, waiting, names)
        _print(f"tfdist: {sentence}\n{list_stacks(asked, names)}")
        failure = survey.failure
        if failure is not None:
            readers = [rank for rank, its in asked.items() if its.reads_input]
            if failure.culprit is None and len(readers) == 1:
                self._note_culprit(readers[0])
            text = f"{failure.text} Seen now: {sentence} The stacks of all are in the "
            self._tell(failure.kind, f"{text}output of {self._names[0].short}.")

    def _lose(self, rank: int, how: str, culprit: int | None = None) -> None:
        """Fail because a rank is gone."""
        text = (
            f"{self._names[rank]} {how}. Look at the end of its log for the cause (a "
            "crash, a signal, no memory left, a cut network), then start all ranks "
            "again."
        )
        self._fail(Failure("lost", text, culprit))

    def _fail(self, failure: Failure) -> None:
        """Send the first failure, and only this one, to every rank."""
        if not self._failed:
            self._failed = True
            if failure.culprit is not None:
                self._note_culprit(failure.culprit)
            if failure.kind == "stalled":
                self._begin_survey(failure)
            else:
                self._tell(failure.kind, failure.text)

    def _note_culprit(self, rank: int) -> None:
        """Tell the launcher which rank of the whole job holds up the others."""
        self._launcher.note_culprit(self._names[rank].rank)

    def _tell(self, kind: str, text: str) -> None:
        """Send a failure to every rank."""
        self._send(self._lines, {"kind": "failure", "what": kind, "text": text})

    def _send(self, ranks: Iterable[int], message: Message | None = None) -> None:
        """Send a message, and what is left of earlier ones, without waiting."""
        data = None if message is None else memoryview(pack(message))
        for line in [self._lines[rank] for rank in ranks]:
            if data is not None:
                line.unsent.append(data)
            line.send()
            events = selectors.EVENT_READ
            if line.unsent:
                events |= selectors.EVENT_WRITE
            key = self._selector.get_key(line.connection)
            if events != key.events:
                self._selector.modify(line.connection, events, key.data)


def _report(
    call: int,
    what: str,
    inside: bool,
    seconds: float,
    plan: Sequence[str],
    collective: str = "",
) -> Report:
    """Return a report of the right types; raise for anything else."""
    position = int(call), str(what), bool(inside), float(seconds)
    return Report(*position, tuple(map(str, plan)), str(collective))


def _position(report: Report) -> str:
    """Describe in what a rank waits, and for how long."""
    call = f"{report.what} (joint call {report.call})"
    collective = f" for {report.collective}" if report.collective else ""
    return f"{call}{collective}, for {report.seconds:.0f} s"


def _print(text: str) -> None:
    """Print without waiting for a blocked output, or failing for a closed one."""

    def write() -> None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)

    threading.Thread(target=write, name="tfdist report", daemon=True).start()
