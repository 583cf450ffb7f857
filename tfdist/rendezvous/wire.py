"""Messages between processes: JSON objects, each prefixed with its length."""

import json
import socket
import struct
import time
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
# Far above any message of tfdist; other protocols decode to larger lengths.
MAX_BYTES = 256 * 2**20
CHUNK_BYTES = 1 << 16
_SHOWN_BYTES = 40


class ForeignData(ValueError):
    """The error for data that is no message of tfdist; `received` shows it."""

    def __init__(self, received: str) -> None:
        super().__init__(
            "A peer sent something that is not a tfdist message. "
            f"Received: {received}. See which other program uses this address."
        )
        self.received = received


def pack(message: Message) -> bytes:
    """Encode a message, prefixed with its length."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def send(connection: socket.socket, message: Message) -> None:
    """Send a whole message; raise OSError if the peer is gone."""
    connection.sendall(pack(message))


class Reader:
    """Incremental decoder of the bytes that arrive on one connection."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes, or raise ForeignData."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size and self.missing <= 0:
            end = len(self._bytes) + self.missing
            body = self._bytes[_LENGTH.size : end]
            del self._bytes[:end]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                raise foreign_bytes(body)
            messages.append(message)
        return messages

    @property
    def missing(self) -> int:
        """The bytes that complete the length or the message, negative for more."""
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size - len(self._bytes)
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > self.max_bytes:
            raise foreign_bytes(self._bytes)
        return _LENGTH.size + int(length) - len(self._bytes)


def receive(
    connection: socket.socket, timeout_seconds: float, max_bytes: int = MAX_BYTES
) -> Message:
    """Wait for one message; raise OSError or ValueError if none arrives in time."""
    deadline = time.monotonic() + timeout_seconds
    reader = Reader(max_bytes)
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        # No more than this message, so that nothing of the next one is consumed.
        data = connection.recv(min(reader.missing, CHUNK_BYTES))
        if not data:
            raise ConnectionError("The peer closed the connection.")
        if messages := reader.feed(data):
            return messages[0]
    raise TimeoutError("timed out")


def foreign_bytes(data: bytes | bytearray) -> ForeignData:
    """Return the error for bytes that are no message."""
    return ForeignData(repr(bytes(data[:_SHOWN_BYTES])))
