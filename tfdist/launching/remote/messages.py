"""Messages between the launcher and its agent on a host, with heartbeats and checks."""

import asyncio
import re
import reprlib
from collections.abc import Awaitable, Callable
from typing import IO, Any, NoReturn

from tfdist.cluster.validation import excerpt
from tfdist.rendezvous.wire import (
    MAX_BYTES,
    ForeignData,
    Message,
    Reader,
    foreign_bytes,
    pack,
)

# Marks the first message, since a login shell may print text before it.
GREETING = b"\ntfdist agent 2\n"
BEAT_SECONDS = 1.0
# Without a message for this long, the peer counts as lost.
SILENCE_SECONDS = 15.0
CHUNK_BYTES = 65_536
# The agents' messages are far shorter.
MAX_BYTES_OF_AGENT = 4 * 2**20
_LONGEST_LINE = 1000
_MAX_NUMBER = 2**31
# Minus the number of a signal, or what a process has returned.
_EXIT_CODES = range(-64, 256)
_STREAMS = range(2)
_PORTS = range(1, 65_536)
_MAX_SECONDS = 1e9

_short = reprlib.Repr()
_short.maxlevel, _short.maxdict = 2, 8


class AgentLink:
    """One end of a connection over two pipes, with heartbeats in both directions."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        reading: asyncio.BaseTransport,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._reader, self._reading, self._writer = reader, reading, writer
        # No silence is counted while this side or the peer is known to pause.
        self.is_paused = False
        self._missed = 0

    def send(self, message: Message) -> None:
        """Send a message; what the pipe does not take at once waits in memory."""
        self._writer.write(pack(message))

    async def drain(self) -> None:
        """Wait until the peer has read most of what was sent."""
        await self._writer.drain()

    async def skip_to_greeting(self) -> None:
        """Skip the output of the login shell."""
        try:
            await self._reader.readuntil(GREETING)
        except asyncio.IncompleteReadError:
            raise ConnectionError("no tfdist agent has answered") from None
        except asyncio.LimitOverrunError:
            raise foreign_bytes(await self._reader.read(CHUNK_BYTES)) from None

    async def receive(
        self,
        handle: Callable[[Message], Awaitable[None]],
        max_bytes: int = MAX_BYTES,
    ) -> NoReturn:
        """Handle each message; raise ConnectionError, TimeoutError or ForeignData."""
        beats = asyncio.create_task(self._beat())
        decoder = Reader(max_bytes)
        try:
            while data := await self._reader.read(CHUNK_BYTES):
                self._missed = 0
                for message in decoder.feed(data):
                    if message.get("kind") != "beat":
                        await handle(message)
            raise ConnectionError("the connection was closed")
        finally:
            beats.cancel()
            self.close()

    async def _beat(self) -> None:
        """Send heartbeats; have `receive` raise TimeoutError if the peer is silent."""
        # Heartbeats are counted instead of seconds, which pass while this process is
        # stopped.
        while self._missed * BEAT_SECONDS < SILENCE_SECONDS:
            self.send({"kind": "beat"})
            await asyncio.sleep(BEAT_SECONDS)
            self._missed = 0 if self.is_paused else self._missed + 1
        error = TimeoutError(f"nothing has come for {SILENCE_SECONDS:.0f} s")
        self._reader.set_exception(error)

    def close(self) -> None:
        """Close both pipes."""
        self._reading.close()
        if not self._writer.is_closing():
            self._writer.transport.abort()


async def open_link(reading: IO[bytes], writing: IO[bytes]) -> AgentLink:
    """Return a link over two pipes."""
    reader, transport = await open_reader(reading)
    return AgentLink(reader, transport, await open_writer(writing))


async def open_reader(
    pipe: IO[bytes],
) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Return a stream that reads a pipe, and the transport that closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport


async def open_writer(pipe: IO[bytes]) -> asyncio.StreamWriter:
    """Return a stream that writes to a pipe."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


def check_message(message: Message) -> None:
    """Raise ForeignData for a message that no agent sends."""
    kind = message.get("kind")
    if kind == "hello" and "refusal" in message:
        kind = "refusal"
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    is_known = fields is not None and all(
        name in message and is_valid(message[name]) for name, is_valid in fields.items()
    )
    if not is_known:
        raise foreign(message)


def foreign(message: Message) -> ForeignData:
    """Return the error for a message that no agent sends, or not at this time."""
    return ForeignData(excerpt(_short.repr(message)))


def _is_in(numbers: range) -> Callable[[Any], bool]:
    """Return a check for an integer, which True is not."""
    return lambda value: type(value) is int and value in numbers


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a list of valid values."""
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_line(value: Any) -> bool:
    """Return whether a value may be printed as it is."""
    is_short = isinstance(value, str) and len(value) <= _LONGEST_LINE
    return is_short and value.isprintable()


def _are_versions(value: Any) -> bool:
    """Return whether a value has versions by the name of a package."""
    return isinstance(value, dict) and all(map(_is_line, value.values()))


def _are_notes(value: Any) -> bool:
    """Return whether a value is what `read_notes` returns, as JSON."""
    if not (isinstance(value, list) and len(value) == 3):
        return False
    step, culprit, is_asked = value
    is_step = isinstance(step, str) and bool(re.fullmatch("[0-9]{0,20}", step))
    is_culprit = culprit is None or _is_number(culprit)
    return is_step and is_culprit and isinstance(is_asked, bool)


def _are_seconds(value: Any) -> bool:
    """Return whether a value is a time that has passed."""
    return type(value) in (int, float) and 0 <= value < _MAX_SECONDS


_is_number = _is_in(range(_MAX_NUMBER))
_are_numbers = _is_list_of(_is_number)
# The fields of each kind of message, with their checks.
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "hello": {
        "versions": _are_versions,
        "ports": _is_list_of(_is_in(_PORTS)),
        "cores": lambda value: _are_numbers(value) and len(value) > 0,
        "gpus": _is_list_of(_are_numbers),
        "visible": lambda value: value is None or isinstance(value, str),
        "quota": lambda value: value is None or _is_number(value),
    },
    "refusal": {"versions": _are_versions, "refusal": _is_line},
    "output": {
        "rank": _is_number,
        "stream": _is_in(_STREAMS),
        "data": lambda value: isinstance(value, str),
    },
    "exit": {
        "rank": _is_number,
        "code": _is_in(_EXIT_CODES),
        "ago": _are_seconds,
    },
    "gone": {"rank": _is_number},
    "notes": {"notes": _are_notes},
}
