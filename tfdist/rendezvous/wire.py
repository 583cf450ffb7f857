"""Messages between processes: JSON objects, each prefixed with its length."""

import json
import socket
import struct
import time
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
# Far above any message of tfdist; other protocols decode to larger lengths.
_MAX_BYTES = 256 * 2**20


def pack(message: Message) -> bytes:
    """Encode a message, prefixed with its length."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def send(connection: socket.socket, message: Message) -> None:
    """Send a whole message; raise OSError if the peer is gone."""
    connection.sendall(pack(message))


class Reader:
    """Incremental decoder of the bytes that arrive on one connection."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes; ValueError for foreign data."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > _MAX_BYTES:
                raise _foreign(self._bytes[:16])
            if len(self._bytes) < _LENGTH.size + length:
                break
            body = self._bytes[_LENGTH.size : _LENGTH.size + length]
            del self._bytes[: _LENGTH.size + length]
            message = json.loads(body)
            if not isinstance(message, dict):
                raise _foreign(body[:40])
            messages.append(message)
        return messages


def receive(connection: socket.socket, timeout_seconds: float) -> Message:
    """Wait for one message; raise OSError or ValueError if none arrives in time."""
    deadline = time.monotonic() + timeout_seconds
    reader = Reader()
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        # Byte by byte, so that nothing of the next message is consumed.
        data = connection.recv(1)
        if not data:
            raise ConnectionError("The peer closed the connection.")
        if messages := reader.feed(data):
            return messages[0]
    raise TimeoutError("timed out")


def _foreign(data: bytearray) -> ValueError:
    return ValueError(
        "A peer sent something that is not a tfdist message. "
        f"Received: {bytes(data)!r}. "
        "See which other program uses this address."
    )
