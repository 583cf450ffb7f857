"""Messages between processes: JSON objects, each with its length before it."""

import json
import socket
import struct
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
# Far more than any message of ours; a stranger's bytes read as a length are refused.
_LONGEST_BYTES = 256 * 2**20


def send(connection: socket.socket, message: Message) -> None:
    """Send one message whole.

    Args:
        connection: A connected stream socket.
        message: What JSON can hold.

    Raises:
        OSError: If the other side is gone.
    """
    connection.sendall(pack(message))


def pack(message: Message) -> bytes:
    r"""Return a message as the bytes that are sent.

    Args:
        message: What JSON can hold.

    Returns:
        Its length, and the message as JSON.

    Example:
        >>> pack({"a": 1})
        b'\x00\x00\x00\x08{"a": 1}'
    """
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


class Reader:
    """Cuts the bytes that arrive into messages.

    Example:
        >>> Reader().feed(bytes([0, 0, 0, 8]) + b'{"a": 1}')
        [{'a': 1}]
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take what arrived and return the messages that are complete.

        Args:
            data: Any number of bytes, in the order in which they were sent.

        Returns:
            The messages, oldest first.

        Raises:
            ValueError: If the bytes are no messages of ours.
        """
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > _LONGEST_BYTES:
                raise ValueError(
                    "A peer sent something that is not a tfdist message. "
                    f"Received: {bytes(self._bytes[:16])!r}. "
                    "See which other program uses this address."
                )
            if len(self._bytes) < _LENGTH.size + length:
                break
            body = bytes(self._bytes[_LENGTH.size : _LENGTH.size + length])
            del self._bytes[: _LENGTH.size + length]
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError(
                    "A peer sent something that is not a tfdist message. "
                    f"Received: {body[:40]!r}. "
                    "See which other program uses this address."
                )
            messages.append(message)
        return messages


def receive(connection: socket.socket, reader: Reader) -> Message:
    """Wait for one message.

    Args:
        connection: A connected stream socket; its timeout holds.
        reader: The reader of this connection.

    Returns:
        The next message.

    Raises:
        ConnectionError: If the other side closes before a whole message is there.
        TimeoutError: If the socket's timeout passes.
        ValueError: If the bytes are no messages of ours.
    """
    while True:
        data = connection.recv(1)
        if not data:
            raise ConnectionError("The peer closed the connection.")
        # Byte by byte, so that nothing of the following message is taken along.
        messages = reader.feed(data)
        if messages:
            return messages[0]
