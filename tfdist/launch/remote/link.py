"""Messages with heartbeats between the launcher and its agent on a host."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import IO, NoReturn

from tfdist.rendezvous.wire import MAX_BYTES, Message, Reader, foreign_bytes, pack

# Marks the first message, since a login shell may print text before it.
GREETING = b"\ntfdist agent 2\n"
BEAT_SECONDS = 1.0
# Without a message for this long, the peer counts as lost.
SILENCE_SECONDS = 15.0
CHUNK_BYTES = 65_536


class Link:
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


async def open_link(reading: IO[bytes], writing: IO[bytes]) -> Link:
    """Return a link over two pipes."""
    reader, transport = await open_reader(reading)
    return Link(reader, transport, await open_writer(writing))


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
