"""Collectives with heartbeats, so that a lost peer causes an error that names it."""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, TypeVar

import tensorflow as tf

from tfdist.collectives.recorder import Recorder
from tfdist.collectives.wire_format import TypedCollective
from tfdist.rendezvous.flight import KINDS
from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.lifeline import Lifeline, part
from tfdist.rendezvous.watchdog import STOPPED_SECONDS, start_watchdog
from tfdist.scaling import StepTimes

_Result = TypeVar("_Result")


class MonitoredCollective(TypedCollective):
    """A collective whose ranks monitor each other through lifelines to rank 0."""

    # The engine's errors that a failed peer causes.
    _PEER_ERRORS: ClassVar[tuple[type[Exception], ...]]

    def __init__(
        self, rank: int, size: int, lifeline: Lifeline, hub: Hub | None
    ) -> None:
        self.rank, self.size = rank, size
        self._lifeline = lifeline
        self.recorder = Recorder(rank, size)
        lifeline.waits_in = self.recorder.waits_in
        lifeline.step_times = self.recorder.step_times
        start_watchdog(f"rank {rank}", STOPPED_SECONDS, if_stopped=True)
        atexit.register(self._leave, hub)
        # A forked child must not take leave of the others in this rank's name.
        os.register_at_fork(after_in_child=lambda: atexit.unregister(self._leave))

    def exchange(self, name: str, value: Any, *, joint: bool = True) -> list[Any]:
        """Gather a small value from all ranks; see `Collective.exchange`."""
        with self.recorder.entry(f"the exchange of {name}"):
            return self._lifeline.exchange(name, value, joint=joint)

    def gather_values(self, name: str, value: Any) -> list[Any]:
        """Gather values on rank 0; see `Collective.gather_values`."""
        with self.recorder.entry(f"the gathering of {name}"):
            return self._lifeline.exchange(name, value, to_chief=True)

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks; see `Collective.barrier`."""
        self.exchange(f"barrier {name}", None)

    def tell(self, what: str, value: Any = True) -> None:
        """Tell the ranks that wait for the chief; see `Collective.tell`."""
        self._lifeline.tell(what, value)

    def wait_for_chief(self, what: str) -> Any:
        """Wait until the chief has told it; see `Collective.wait_for_chief`."""
        return self._lifeline.wait_for_chief(what)

    def stops_here(self, wishes: bool) -> bool:
        """Agree on where to stop; see `Collective.stops_here`."""
        return self._lifeline.stops_here(wishes)

    def traced(
        self, what: str, inputs: Sequence[Any], op: Callable[[], _Result]
    ) -> _Result:
        """Add a collective to a graph, and record it; see `Collective.traced`."""
        self._lifeline.traced(what)
        return self.recorder.traced(what, inputs, op)

    def step(
        self, what: str, data: Any
    ) -> AbstractContextManager[Callable[[Any], None]]:
        """Mark a step of Keras for the record; see `Collective.step`."""
        return self.recorder.step(what, data)

    def step_times(self, since: float) -> list[StepTimes]:
        """Return the times of recent steps; see `Collective.step_times`."""
        return self.recorder.step_times(since)

    @contextmanager
    def call(self, what: str) -> Iterator[None]:
        """Mark a section in which ranks may wait; see `Collective.call`."""
        self._lifeline.check()
        record = self.recorder.call(what) if what in KINDS else self._record(what)
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

    def _leave(self, hub: Hub | None) -> None:
        """Close the lifeline before the interpreter exits."""
        error = getattr(sys, "last_value", None)
        self.recorder.close("" if error is None else f"{type(error).__name__}: {error}")
        part(self._lifeline, hub)
