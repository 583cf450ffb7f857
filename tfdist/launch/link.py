"""Messages over a pair of pipes, between the launcher and its agent on a host."""

import contextlib
import os
import threading
import time

from tfdist.rendezvous.wire import Message, Reader, pack

# Before the first message: a login shell may print something of its own.
GREETING = b"tfdist agent 1\n"
BEAT_SECONDS = 2.0
# The other side is taken for lost when nothing has come from it for this long.
SILENCE_SECONDS = 15.0

_CHUNK_BYTES = 65_536
# What may wait to be written before no more output is taken in.
_MANY_BYTES = 2**20


class Link:
    """One end of a connection that is noticed when it is cut.

    Both ends send beats, so silence means that the network, or the other host, is
    gone, also where no operating system would notice for hours. Nothing here blocks:
    who has much to say asks `is_full` before. Messages may be sent from any thread.

    Args:
        reading: The file descriptor from which the other side is heard.
        writing: The one to which is written; both are made non-blocking.

    Example:
        >>> (ear, voice), (their_ear, their_voice) = os.pipe(), os.pipe()
        >>> here, there = Link(ear, their_voice), Link(their_ear, voice)
        >>> here.send({"kind": "beat"})
        >>> there.receive()
        [{'kind': 'beat'}]
    """

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        self._reader = Reader()
        self._unwritten = bytearray()
        self._writing = threading.Lock()
        self._heard = self._beaten = time.monotonic()

    def send(self, message: Message) -> None:
        """Send a message, as soon as there is room for it.

        Args:
            message: What JSON can hold.

        Raises:
            ConnectionError: If the other side is gone.
        """
        with self._writing:
            self._unwritten += pack(message)
        self.flush()

    def flush(self) -> None:
        """Write what there is room for.

        Raises:
            ConnectionError: If the other side is gone.
        """
        with self._writing, contextlib.suppress(BlockingIOError):
            while self._unwritten:
                written = os.write(self.writing, self._unwritten[:_CHUNK_BYTES])
                del self._unwritten[:written]

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be written when there is room."""
        return bool(self._unwritten)

    @property
    def is_full(self) -> bool:
        """Whether the other side takes less than it is sent."""
        return len(self._unwritten) > _MANY_BYTES

    def receive(self) -> list[Message]:
        """Read what has come.

        Returns:
            The messages that are complete, oldest first.

        Raises:
            ConnectionError: If the other side has closed the connection.
            ValueError: If what came is no message.
        """
        try:
            data = os.read(self.reading, _CHUNK_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("the connection was closed")
        self._heard = time.monotonic()
        return self._reader.feed(data)

    def beat(self) -> float:
        """Send a beat if it is time.

        Returns:
            After how many seconds the next one is due.

        Raises:
            ConnectionError: If the other side is gone.
        """
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self.send({"kind": "beat"})
        return BEAT_SECONDS - (now - self._beaten)

    def listen_anew(self) -> None:
        """Count silence from now on, after a time in which nobody has listened."""
        self._heard = time.monotonic()

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for so long that the other side must be gone."""
        return time.monotonic() - self._heard > SILENCE_SECONDS
