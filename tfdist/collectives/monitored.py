"""Collectives with heartbeats, so that a lost peer causes an error that names it."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.collectives.wire_format import TypedCollective
from tfdist.liveness.lifeline import Lifeline
from tfdist.liveness.watchdog import STOPPED_SECONDS, start_watchdog
from tfdist.recorder.graph import Recorder
from tfdist.recorder.ring import StepKind


class MonitoredCollective(TypedCollective):
    """A collective whose ranks monitor each other through lifelines to rank 0."""

    # The engine's errors that a failed peer causes.
    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]]
    recorder: Recorder

    def __init__(self, rank: int, size: int, lifeline: Lifeline) -> None:
        self.rank, self.size = rank, size
        self._lifeline = lifeline
        self.recorder = lifeline.record = Recorder(rank, size)
        start_watchdog(f"rank {rank}", STOPPED_SECONDS, if_stopped=True)
        atexit.register(self._leave)
        # A forked child must not take leave of the others in this rank's name.
        os.register_at_fork(after_in_child=lambda: atexit.unregister(self._leave))

    @property
    def control(self) -> Lifeline:
        """The connection of this rank to rank 0; see `Collective.control`."""
        return self._lifeline

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Gather a small value from all ranks; see `Collective.exchange`."""
        return self._lifeline.exchange(name, value, joint=joint)

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a section in which ranks may wait; see `Collective.call`."""
        self._lifeline.check()
        record = self._record(what)
        if isinstance(what, StepKind):
            record = self.recorder.call(what)
        with self._lifeline.call(what), record:
            try:
                yield
            except tf.errors.OutOfRangeError:
                raise
            except tf.errors.OpError as error:
                if isinstance(error, self._PEER_ERRORS):
                    # The lost peer's name arrives after the engine's error, and only
                    # while this rank is known to be in the call.
                    self._lifeline.wait_for_failure()
                self._lifeline.check()
                # The peers would otherwise wait in this call.
                self._lifeline.report_error(what, error)
                raise
            except Exception:
                # After a peer's failure, an engine may raise anything.
                self._lifeline.check()
                raise

    def _record(self, what: str) -> AbstractContextManager[Any]:
        """Record a collective that Python calls."""
        return self.recorder.entry(what)

    def _leave(self) -> None:
        """Close the lifeline before the interpreter exits."""
        error = getattr(sys, "last_value", None)
        self.recorder.close("" if error is None else f"{type(error).__name__}: {error}")
        self._lifeline.leave()
