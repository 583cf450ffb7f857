"""What collectives between processes have in common, whatever moves the tensors."""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.collectives.typed import TypedCollective
from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.lifeline import Lifeline, part


class LinkedCollective(TypedCollective):
    """A collective whose ranks are tied together by lifelines.

    It turns errors that a peer caused into those that name it.

    Args:
        rank: This rank.
        size: How many ranks there are.
        lifeline: This rank's connection to rank 0.
        hub: The other end of all lifelines, on rank 0; None on the other ranks.
    """

    # What the engine raises when a peer, and not this rank, is at fault.
    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]]

    def __init__(
        self, rank: int, size: int, lifeline: Lifeline, hub: Hub | None
    ) -> None:
        self._rank, self._size = rank, size
        self._lifeline = lifeline
        atexit.register(self._leave, hub)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """How many processes take part."""
        return self._size

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Give a small value and get those of all ranks; see `Collective.exchange`."""
        return self._lifeline.exchange(name, value, joint=joint)

    def barrier(self, name: str = "barrier") -> None:
        """Wait until every rank is here; see `Collective.barrier`."""
        self._lifeline.exchange(f"barrier {name}", None)

    def traced(self, what: str) -> None:
        """Note a collective that a graph will run.

        Args:
            what: The collective in words, the same on every rank.
        """
        self._lifeline.traced(what)

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a stretch in which ranks may wait; see `Collective.call`."""
        self._lifeline.check()
        with self._lifeline.call(what):
            try:
                yield
            except tf.errors.OutOfRangeError:
                raise
            except tf.errors.OpError as error:
                if isinstance(error, self._PEER_ERRORS):
                    # It is felt at once that a peer has gone; which, a moment later,
                    # and only while this rank is known to be in the call.
                    self._lifeline.wait_for_failure()
                self._lifeline.check()
                # The peers are still in this call, and would wait there.
                self._lifeline.report_error(what, error)
                raise
            except Exception:
                # An engine that a peer's failure has stopped raises whatever it likes.
                self._lifeline.check()
                raise

    def _leave(self, hub: Hub | None) -> None:
        """Say goodbye before the interpreter goes."""
        part(self._lifeline, hub)
