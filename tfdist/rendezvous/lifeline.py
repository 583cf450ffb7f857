"""Each rank's connection to rank 0, over which no rank waits in silence for another."""

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from tfdist.rendezvous.hub import BEAT_SECONDS, SILENCE_SECONDS
from tfdist.rendezvous.stall import Failure
from tfdist.rendezvous.wire import Reader, send

_ERRORS: dict[str, type[Exception]] = {
    "lost": ConnectionError,
    "stalled": TimeoutError,
    "disagree": RuntimeError,
}
# A report with the whole plan is worth its bytes only when this rank has long waited.
_SEND_PLAN_SECONDS = 3.0
# A rank that has left is believed to be missed after 3 s, and 2 more are on the way.
_REASON_SECONDS = 10.0
_LONGEST_TEXT = 2000


class Lifeline:
    """Tells the other ranks where this one is, and this one what befell the others.

    TensorFlow's collectives wait for ever for a peer that is dead or somewhere else.
    The lifeline notices, through rank 0, and ends the waiting on all ranks with the
    same words.

    Args:
        connection: The socket to rank 0's hub.
        rank: This rank.
        name_of_hub: What to call rank 0 in a message.
        on_failure: Called once, from another thread, with the reason when the ranks
            cannot go on: it must wake whoever waits outside of this class.
    """

    def __init__(
        self,
        connection: socket.socket,
        rank: int,
        name_of_hub: str,
        on_failure: Callable[[str], None],
    ) -> None:
        self.failure: Failure | None = None
        self._connection = connection
        self._name_of_hub = name_of_hub
        self._on_failure = on_failure
        self._reader = Reader()
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._values: dict[str, list[Any]] = {}
        self._exchanges: Counter[str] = Counter()
        self._call, self._what, self._inside = 0, "nothing yet", 0
        self._since = time.monotonic()
        self._plan: list[str] = []
        self._closed = False
        os.register_at_fork(after_in_child=connection.close)
        for target in (self._listen, self._beat):
            threading.Thread(
                target=target, name=f"tfdist lifeline {rank}", daemon=True
            ).start()

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a call in which this rank may wait for the others.

        Args:
            what: The call in words, the same on every rank that makes it.

        Yields:
            Nothing; the block is the call.
        """
        if self._inside == 0:
            self._call, self._what = self._call + 1, what
            self._since = time.monotonic()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._since = time.monotonic()

    def traced(self, what: str) -> None:
        """Note a collective that a graph of this rank holds.

        Args:
            what: The collective in words, the same on every rank.
        """
        self._plan.append(what)

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Give a value and get those of all ranks.

        Args:
            name: What is exchanged; the nth exchange of a name on one rank belongs to
                the nth on every other.
            value: What JSON can hold.
            joint: Whether this is one of the calls that every rank makes in the same
                order; False for threads beside them. Default True.

        Returns:
            The values by rank.

        Raises:
            ConnectionError: If a rank is gone.
            RuntimeError: If the ranks make different calls.
            TimeoutError: If a rank does not come.
        """
        # Else the others' values might come before anybody asks.
        self.check()
        key = json.dumps([name, self._exchanges[name]])
        self._exchanges[name] += 1
        self._send({"kind": "exchange", "key": key, "value": value})
        here = self.call(f"the exchange of {name}") if joint else nullcontext()
        with here, self._arrived:
            while key not in self._values:
                self.check()
                self._arrived.wait()
            return self._values.pop(key)

    def check(self) -> None:
        """Raise if the ranks cannot go on together.

        Raises:
            ConnectionError: If a rank is gone.
            RuntimeError: If the ranks make different calls.
            TimeoutError: If a rank did not come.
        """
        if self.failure is not None:
            raise _ERRORS[self.failure.kind](self.failure.text)

    def wait_for_failure(self) -> None:
        """Wait a moment for the reason of an error that a peer must have caused.

        Raises:
            ConnectionError: If a rank is gone.
            RuntimeError: If the ranks make different calls.
            TimeoutError: If a rank did not come.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self.failure is not None, _REASON_SECONDS)
        self.check()

    def report_error(self, what: str, error: Exception) -> None:
        """Tell the others that this rank could not finish a joint call.

        Args:
            what: The call in words.
            error: What it raised.
        """
        text = f"{type(error).__name__} in {what}: {error}"
        self._send({"kind": "error", "text": text[:_LONGEST_TEXT]})

    def wait_for_all(self, timeout_seconds: float) -> None:
        """Wait a while until every rank is about to leave.

        A peer may still be fetching what a collective of this rank has left for it.

        Args:
            timeout_seconds: How long to wait for the others, which may have more to do.
        """
        key = json.dumps(["the end", 0])
        self._send({"kind": "exchange", "key": key, "value": None})
        with self._arrived:
            self._arrived.wait_for(
                lambda: key in self._values or self.failure is not None, timeout_seconds
            )

    def close(self) -> None:
        """Leave in good order, so that the others do not take this rank for lost."""
        error = getattr(sys, "last_value", None)
        text = "" if error is None else f"{type(error).__name__}: {error}"
        self._closed = True
        self._send(
            {"kind": "bye", "error": text[:_LONGEST_TEXT], "report": self._report()}
        )
        # The hub waits for the end of every connection, rank 0's own among them.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def _send(self, message: dict[str, Any]) -> None:
        """Send to the hub; a hub that is gone is noticed by the listener."""
        try:
            with self._sending:
                send(self._connection, message)
        except OSError:
            return

    def _beat(self) -> None:
        """Report again and again where this rank is."""
        while not self._closed and self.failure is None:
            self._send({"kind": "beat", "report": self._report()})
            time.sleep(BEAT_SECONDS)

    def _report(self) -> dict[str, Any]:
        """Say where this rank is."""
        seconds = time.monotonic() - self._since
        long = self._inside > 0 and seconds > _SEND_PLAN_SECONDS
        return {
            "call": self._call,
            "what": self._what,
            "inside": self._inside > 0,
            "seconds": seconds,
            "plan": self._plan if long else [],
        }

    def _listen(self) -> None:
        """Hear what rank 0 says until the connection ends."""
        self._connection.settimeout(SILENCE_SECONDS)
        how = "is gone: its connection closed"
        try:
            while data := self._connection.recv(1 << 16):
                for message in self._reader.feed(data):
                    self._hear(message)
        except TimeoutError:
            how = f"has been silent for {SILENCE_SECONDS:.0f} s"
        except (OSError, ValueError):
            pass
        if not self._closed:
            text = (
                f"{self._name_of_hub} {how}. Look at the end of its log for the cause, "
            )
            self._fail(Failure("lost", text + "then start all ranks again."))

    def _hear(self, message: dict[str, Any]) -> None:
        """Act on one message of the hub."""
        if message["kind"] == "values":
            with self._arrived:
                self._values[message["key"]] = message["values"]
                self._arrived.notify_all()
        elif message["kind"] == "failure":
            self._fail(Failure(message["what"], message["text"]))

    def _fail(self, failure: Failure) -> None:
        """Wake everyone who waits, once."""
        with self._arrived:
            if self.failure is not None:
                return
            self.failure = failure
            self._arrived.notify_all()
        self._on_failure(failure.text)
