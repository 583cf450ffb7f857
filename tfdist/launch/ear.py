"""What a loop hears while it waits: signals, and news from another thread."""

import contextlib
import socket


class Ear:
    """Where small numbers arrive, so that a loop can wait for them like for anything.

    Args:
        signals: A socket on which signals arrive as bytes. Default None: none do. It
            stays open, and what nobody has read stays there.

    Attributes:
        sources: The sockets to wait for and to read from.

    Example:
        >>> ear = Ear()
        >>> ear.tell(65)
        >>> [source.recv(64) for source in ear.sources]
        [b'A']
        >>> ear.close()
    """

    def __init__(self, signals: socket.socket | None = None) -> None:
        own, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._own = own
        self.sources = (own,) if signals is None else (own, signals)

    def tell(self, news: int) -> None:
        """Wake the loop, from any thread; nothing happens once it is closed.

        Args:
            news: A number from 0 to 255.
        """
        with contextlib.suppress(OSError):
            self._mouth.send(bytes([news]))

    def close(self) -> None:
        """Let go of what is its own."""
        self._own.close()
        self._mouth.close()
