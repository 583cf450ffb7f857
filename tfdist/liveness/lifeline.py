"""Heartbeat connection of each rank to rank 0, which turns a hang into an error."""

import itertools
import json
import os
import select
import socket
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Any

from tfdist.liveness.diagnosis import Failure, Report, ended
from tfdist.liveness.hub import BEAT_SECONDS, SILENCE_SECONDS, Hub
from tfdist.liveness.stacks import Snapshot, take_snapshot
from tfdist.recorder.ring import Flight, Unrecorded
from tfdist.recorder.step_times import median_times
from tfdist.rendezvous.handshake import Meeting
from tfdist.rendezvous.wire import Reader, send

_ERRORS: dict[str, type[Exception]] = {
    "lost": ConnectionError,
    "stalled": TimeoutError,
    "disagree": RuntimeError,
}
# The plan is large, and useful only after a long wait.
_SEND_PLAN_SECONDS = 3.0
# The hub needs 3 s to notice that a rank has left, and messages take up to 2 s.
_REASON_SECONDS = 10.0
_LONGEST_TEXT = 2000
# To read the record takes milliseconds.
_BEATS_PER_TIMES = 5
# A rank is called slow if it is so for as many steps, or more if they are short.
SLOW_STEPS = 100
# On a busy machine a peer may need seconds for the last collective. In this time a rank
# that has left out a call of the others is taken for a slow one.
_FAREWELL_SECONDS = 3.0
_STOP = json.dumps(["the choice of the step to stop after", 0])


class Lifeline:
    """Connection over which a rank reports its position and learns of failures."""

    # TensorFlow's collectives wait forever for a peer that is dead or in another call.
    # `on_failure` runs once, in another thread; it must interrupt such waiting calls.
    def __init__(
        self,
        connection: socket.socket,
        rank: int,
        name_of_hub: object,
        on_failure: Callable[[str], None],
        hub: Hub | None = None,
    ) -> None:
        self.failure: Failure | None = None
        self.record: Flight | Unrecorded = Unrecorded()
        self._connection = connection
        self._name_of_hub, self._hub = name_of_hub, hub
        self._on_failure = on_failure
        self._reader = Reader()
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._values: dict[str, list[Any]] = {}
        self._exchanges: Counter[str] = Counter()
        # What rank 0 has told and this rank has not waited for, by what it is about and
        # after which joint call.
        self._told: defaultdict[tuple[str, int], deque[Any]] = defaultdict(deque)
        self._call_of_chief: int | None = 0
        self._points, self._must_ask = 0, False
        self._call, self._what, self._inside = 0, "nothing yet", 0
        self._since = time.monotonic()
        self._closed, self._is_alone = False, False
        os.register_at_fork(after_in_child=connection.close)
        for target in (self._listen, self._beat):
            threading.Thread(
                target=target, name=f"tfdist lifeline {rank}", daemon=True
            ).start()

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a block in which this rank may wait for the others."""
        if self._inside == 0:
            self._call, self._what = self._call + 1, what
            self._since = time.monotonic()
        self._inside += 1
        try:
            if self._is_alone:
                raise self._alone(what)
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._since = time.monotonic()

    def exchange(
        self, name: str, value: Any, *, joint: bool = True, to_chief: bool = False
    ) -> list[Any]:
        """Return the values of all ranks in the nth exchange of a name, by rank."""
        # After a failure even an exchange that could still complete must raise.
        self.check()
        key = json.dumps([name, self._exchanges[name]])
        self._exchanges[name] += 1
        message = {"kind": "exchange", "key": key, "value": value}
        self._send({**message, "to_chief": True} if to_chief else message)
        # Exchanges of parallel threads have no common order, so they are not joint.
        what = f"the exchange of {name}"
        here = self.call(what) if joint else nullcontext()
        with self.record.entry(what), here, self._arrived:
            while key not in self._values:
                self.check()
                if self._is_alone:
                    raise self._alone(what)
                self._arrived.wait()
            return self._values.pop(key)

    def gather(self, name: str, value: Any) -> list[Any]:
        """Return the values of all ranks by rank on rank 0, on others nothing."""
        return self.exchange(name, value, to_chief=True)

    def tell(self, what: str, value: Any = True) -> None:
        """Tell the ranks that wait for rank 0 that it has done something."""
        call = self._call
        self._send({"kind": "told", "what": what, "call": call, "value": value})

    def wait_for_chief(self, what: str) -> Any:
        """Wait until rank 0 has told it, too; return False if it will not."""
        key = what, self._call
        with self._arrived:
            while not self._told[key]:
                self.check()
                # Rank 0 is in the next joint call, or has left.
                if self._call_of_chief is None or self._call_of_chief > self._call:
                    return False
                self._arrived.wait()
            return self._told[key].popleft()

    def stops_here(self, wishes: bool) -> bool:
        """Pass a point at which all ranks may stop; return whether they do."""
        # Once a rank wishes to stop, each tells its next point, from the thread that
        # listens, and waits there for the others': a rank that waits in a step is not
        # waited for. All stop at the last of these points.
        if wishes and not self._must_ask:
            self._send({"kind": "stop"})
        with self._arrived:
            must_ask = wishes or self._must_ask
            while must_ask and _STOP not in self._values and not self._is_alone:
                self.check()
                self._arrived.wait()
            self._points += 1
            return _STOP in self._values and self._points >= max(self._values[_STOP])

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise _ERRORS[self.failure.kind](self.failure.text)

    def wait_for_failure(self) -> None:
        """Wait briefly for the failure behind an error that a peer caused; raise it."""
        with self._arrived:
            self._arrived.wait_for(lambda: self.failure is not None, _REASON_SECONDS)
        self.check()

    def report_error(self, what: str, error: Exception) -> None:
        """Tell the other ranks that this one could not finish a joint call."""
        text = f"{type(error).__name__} in {what}: {error}"
        self._send({"kind": "error", "text": _shortened(text)})

    def wait_for_all(self, timeout_seconds: float) -> None:
        """Wait for a limited time until every rank is about to leave."""
        # A peer may still be fetching results of a collective from this rank.
        key = json.dumps(["the end", 0])
        self._send({"kind": "exchange", "key": key, "value": None})
        with self._arrived:
            self._arrived.wait_for(
                lambda: key in self._values or self._is_alone or self.failure,
                timeout_seconds,
            )

    def close(self) -> None:
        """Leave in good order, so that peers do not report this rank as lost."""
        error = getattr(sys, "last_value", None)
        text = "" if error is None else f"{type(error).__name__}: {error}"
        self._closed = True
        report = self._report()
        self._send({"kind": "bye", "error": _shortened(text), "report": report})
        # The hub waits for the end of every connection, including rank 0's own.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Leave the other ranks before the interpreter exits."""
        if not hasattr(sys, "last_value"):
            self.wait_for_all(_FAREWELL_SECONDS)
        self.close()
        if self._hub is not None:
            self._hub.join(_FAREWELL_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        """Send to the hub; the listener thread notices a lost hub."""
        try:
            with self._sending:
                send(self._connection, message)
        except OSError:
            return

    def _beat(self) -> None:
        """Report the position of this rank periodically."""
        for beat in itertools.count(1):
            if self._closed or self._is_alone or self.failure is not None:
                return
            self._send({"kind": "beat", "report": self._report()})
            if beat % _BEATS_PER_TIMES == 0:
                self._send_times()
            time.sleep(BEAT_SECONDS)

    def _send_times(self) -> None:
        """Send the usual times of the latest steps, once there are enough."""
        times = self.record.step_times()[::-1]
        # A hundred steps of a millisecond may all meet the same disturbance.
        seconds = [*itertools.accumulate(each.step for each in times)]
        recent = bisect_left(seconds, _BEATS_PER_TIMES * BEAT_SECONDS)
        times = times[: max(SLOW_STEPS, recent)]
        usual = median_times(times)
        if usual is not None and len(times) >= SLOW_STEPS:
            self._send({"kind": "times", "times": asdict(usual)})

    def _report(self) -> dict[str, Any]:
        """Describe the position of this rank."""
        inside, seconds = self._inside > 0, time.monotonic() - self._since
        position = Report(self._call, self._what, inside, seconds)
        if inside and seconds > _SEND_PLAN_SECONDS:
            plan, collective = self.record.plan, self.record.waits_in()
            position = replace(position, plan=plan, collective=collective)
        return asdict(position)

    def _listen(self) -> None:
        """Read from the hub until the connection ends."""
        self._connection.settimeout(SILENCE_SECONDS)
        how = "is gone: its connection closed"
        incoming = select.poll()
        incoming.register(self._connection, select.POLLIN)
        quiet = 0
        try:
            while quiet * BEAT_SECONDS <= SILENCE_SECONDS:
                quiet += 1
                if incoming.poll(1000 * BEAT_SECONDS):
                    quiet = 0
                    if not (data := self._connection.recv(1 << 16)):
                        break
                    for message in self._reader.feed(data):
                        self._handle(message)
            else:
                how = f"has been silent for {SILENCE_SECONDS:.0f} s"
        # Behind a cut network, the kernel has closed the connection.
        except (OSError, ValueError):
            pass
        if self._closed:
            return
        if self._call_of_chief is not None:
            advice = "Look at the end of its log for the cause, then start all ranks"
            self._fail(Failure("lost", f"{self._name_of_hub} {how}. {advice} again."))
            return
        # Rank 0 has ended in good order, of which work without it must not hear. A call
        # first counts as begun, and then looks whether rank 0 is there.
        with self._arrived:
            self._is_alone = True
            self._arrived.notify_all()
        if self._inside:
            self._fail(ended(self._name_of_hub, "this rank waits", self._what))

    def _handle(self, message: dict[str, Any]) -> None:
        """Act on a message from the hub."""
        if message["kind"] == "values":
            with self._arrived:
                self._values[message["key"]] = message["values"]
                self._arrived.notify_all()
        elif message["kind"] == "failure":
            self._fail(Failure(message["what"], message["text"]))
        elif message["kind"] == "told":
            with self._arrived:
                self._told[message["what"], message["call"]].append(message["value"])
                self._arrived.notify_all()
        elif message["kind"] == "stop":
            with self._arrived:
                if not self._must_ask:
                    self._must_ask, point = True, self._points + 1
                    self._send({"kind": "exchange", "key": _STOP, "value": point})
        elif message["kind"] == "stacks":
            # This thread must go on, even if the source files cannot be read.
            threading.Thread(
                target=self._answer, name="tfdist snapshot", daemon=True
            ).start()
        elif message["kind"] == "beat":
            with self._arrived:
                self._call_of_chief = message["call"]
                self._arrived.notify_all()

    def _alone(self, what: str) -> ConnectionError:
        """Return the error of a call that rank 0 has left out."""
        return ConnectionError(ended(self._name_of_hub, "this rank waits", what).text)

    def _answer(self) -> None:
        """Send what this rank does."""
        snapshot = Snapshot()
        with suppress(Exception):  # A loader of modules may raise anything.
            snapshot = take_snapshot()
        self._send({"kind": "stacks", **asdict(snapshot)})

    def _fail(self, failure: Failure) -> None:
        """Store the first failure, and wake all waiting threads."""
        with self._arrived:
            if self.failure is not None:
                return
            self.failure = failure
            self._arrived.notify_all()
        self._on_failure(failure.text)


def _shortened(text: str) -> str:
    """Cut the middle out of a long text: an error of TensorFlow says why at its end."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT // 4]} ... {text[5 - _LONGEST_TEXT * 3 // 4 :]}"


def monitor(
    meeting: Meeting, on_failure: Callable[[str], None], timeout_seconds: float
) -> Lifeline:
    """Return the lifeline of a rank that has met the others; rank 0 serves them all."""
    connections, hub = dict(meeting.connections), None
    if meeting.rank == 0:
        mine, theirs = socket.socketpair()
        hub = Hub({**connections, 0: theirs}, meeting.names, timeout_seconds)
        connections[0] = mine
    name_of_hub = meeting.names[0]
    return Lifeline(connections[0], meeting.rank, name_of_hub, on_failure, hub)
