"""Rank 0's end of the lifelines: it hears every rank, and tells all what befell one."""

import json
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tfdist.rendezvous.stall import Failure, Report, find_failure
from tfdist.rendezvous.wire import Message, Reader, send

BEAT_SECONDS = 1.0
# A process may hold Python's lock for long in one call; a dead one is seen at once,
# by its closed connection, so only a cut line or a stopped process takes this long.
SILENCE_SECONDS = 60.0
_SEND_SECONDS = 10.0


class Hub:
    """Joins the lifelines of all ranks.

    It answers `exchange` when every rank has given its value, and sends one failure to
    all ranks when one is gone, silent, or waiting in vain.

    Args:
        connections: A connected socket to each rank, its own included.
        names: What to call each rank in a message.
        timeout_seconds: How long a rank may wait for the others.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        names: Mapping[int, str],
        timeout_seconds: float,
    ) -> None:
        self._connections = dict(connections)
        for connection in self._connections.values():
            # A rank that takes nothing must not hold up what the others are told.
            connection.settimeout(_SEND_SECONDS)
        self._names = names
        self._timeout_seconds = timeout_seconds
        now = time.monotonic()
        self._readers = {rank: Reader() for rank in connections}
        self._heard = dict.fromkeys(connections, now)
        self._reports = {rank: Report() for rank in connections}
        self._left: set[int] = set()
        self._values: dict[str, dict[int, Any]] = {}
        self._failed = False
        self._thread = threading.Thread(
            target=self._serve, name="tfdist hub", daemon=True
        )
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait until every rank has left, so that none finds its hub gone.

        Args:
            timeout_seconds: How long to wait for the slowest.
        """
        self._thread.join(timeout_seconds)

    def _serve(self) -> None:
        """Hear and answer until the last rank has gone."""
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            next_beat = time.monotonic()
            while self._connections:
                wait = max(0.0, next_beat - time.monotonic())
                for key, _ in selector.select(wait):
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + BEAT_SECONDS
                    self._look_around()

    def _read(self, rank: int) -> bool:
        """Take in what a rank sent; False when its connection is closed."""
        try:
            data = self._connections[rank].recv(1 << 16)
            messages = self._readers[rank].feed(data)
        except (OSError, ValueError):
            data, messages = b"", []
        self._heard[rank] = time.monotonic()
        for message in messages:
            self._hear(rank, message)
        if not data:
            self._connections.pop(rank).close()
            if rank not in self._left:
                self._lose(rank, "is gone: its connection closed")
        return bool(data)

    def _hear(self, rank: int, message: Message) -> None:
        """Act on one message of a rank."""
        kind = message["kind"]
        if kind in ("beat", "bye"):
            report = message["report"]
            self._reports[rank] = Report(**{**report, "plan": tuple(report["plan"])})
        if kind == "bye":
            self._left.add(rank)
            if message["error"]:
                self._lose(rank, f"has ended with {message['error']}")
        elif kind == "error":
            self._lose(rank, f"has failed with {message['text']}")
        elif kind == "exchange":
            values = self._values.setdefault(message["key"], {})
            values[rank] = message["value"]
            self._answer(message["key"])

    def _answer(self, key: str) -> None:
        """Give everyone the values of an exchange, once the last is there."""
        values = self._values[key]
        if len(values) == len(self._names):
            del self._values[key]
            ordered = [values[rank] for rank in sorted(values)]
            self._tell_all({"kind": "values", "key": key, "values": ordered})

    def _look_around(self) -> None:
        """Beat, and see whether someone is silent or waits in vain."""
        self._tell_all({"kind": "beat"})
        now = time.monotonic()
        for rank in set(self._connections) - self._left:
            if now - self._heard[rank] > SILENCE_SECONDS:
                self._lose(rank, f"has been silent for {SILENCE_SECONDS:.0f} s")
        self._check_exchanges()
        failure = find_failure(
            self._reports, self._left, self._names, self._timeout_seconds
        )
        if failure is not None:
            self._fail(failure)

    def _check_exchanges(self) -> None:
        """Fail when a rank waits for the value of one that has left."""
        for key, values in self._values.items():
            for rank in self._left - set(values):
                what = json.loads(key)[0]
                self._lose(rank, f"has ended while others wait for it in {what}")

    def _lose(self, rank: int, how: str) -> None:
        """Tell every rank that one is no longer there."""
        text = (
            f"{self._names[rank]} {how}. Look at the end of its log for the cause (a "
            "crash, a signal, no memory left, a cut network), then start all ranks "
            "again."
        )
        self._fail(Failure("lost", text))

    def _fail(self, failure: Failure) -> None:
        """Tell every rank, once, why it cannot go on."""
        if not self._failed:
            self._failed = True
            self._tell_all(
                {"kind": "failure", "what": failure.kind, "text": failure.text}
            )

    def _tell_all(self, message: Message) -> None:
        """Send a message to every rank that still listens."""
        for connection in self._connections.values():
            try:
                send(connection, message)
            except TimeoutError:
                # Half a message is there; whatever follows would be read as its rest.
                with suppress(OSError):  # The rank may be gone by now.
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # Its closed connection is read, and reported, by itself.
