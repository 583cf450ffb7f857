"""Messages with heartbeats between the launcher and its agent on a host."""

import contextlib
import os
import selectors
import threading
import time

from tfdist.rendezvous.wire import Message, Reader, pack

# Marks the first message, since a login shell may print text before it.
GREETING = b"tfdist agent 1\n"
BEAT_SECONDS = 2.0
# Without a message for this long, the peer counts as lost.
SILENCE_SECONDS = 15.0

_CHUNK_BYTES = 65_536
# Above this many unwritten bytes the agent reads no more output.
_MANY_BYTES = 2**20


class Link:
    """One end of a connection over two pipes, with heartbeats in both directions."""

    # Heartbeats detect a lost host. Nothing here blocks, and any thread may send.
    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        self._reader = Reader()
        self._unwritten = bytearray()
        self._lock = threading.Lock()
        self._heard = self._beaten = time.monotonic()

    def send(self, message: Message) -> None:
        """Send a message as soon as the pipe has room."""
        with self._lock:
            self._unwritten += pack(message)
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while self._unwritten:
                written = os.write(self.writing, self._unwritten[:_CHUNK_BYTES])
                del self._unwritten[:written]

    @property
    def is_full(self) -> bool:
        """True if too many bytes wait for the peer to read them."""
        return len(self._unwritten) > _MANY_BYTES

    def receive(self) -> list[Message]:
        """Return the complete messages, oldest first."""
        try:
            data = os.read(self.reading, _CHUNK_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("the connection was closed")
        self._heard = time.monotonic()
        return self._reader.feed(data)

    def beat(self) -> float:
        """Send a heartbeat if due; return the seconds until the next one."""
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self.send({"kind": "beat"})
        return BEAT_SECONDS - (now - self._beaten)

    def run_once(self, selector: selectors.BaseSelector) -> None:
        """Wait for events and call their handlers; send heartbeats meanwhile."""
        for key, _ in selector.select(self.beat()):
            # An earlier handler of this round may have unregistered it.
            if selector.get_map().get(key.fd) is key:
                key.data()
        is_registered = self.writing in selector.get_map()
        if self._unwritten and not is_registered:
            selector.register(self.writing, selectors.EVENT_WRITE, self.flush)
        elif is_registered and not self._unwritten:
            selector.unregister(self.writing)

    def restart_silence(self) -> None:
        """Restart the measurement of silence, after a time without reading."""
        self._heard = time.monotonic()

    @property
    def is_silent(self) -> bool:
        """True if the peer has been silent for so long that it must be gone."""
        return time.monotonic() - self._heard > SILENCE_SECONDS
