"""What is due later, for a loop that waits for other things meanwhile."""

import time
from collections.abc import Callable


class Agenda:
    """The next stage of a run, of which there is one at a time, and small things.

    Args:
        clock: Returns the time in seconds. Default: the monotonic clock.

    Example:
        >>> agenda = Agenda()
        >>> agenda.plan(0.0, lambda: print("now"))
        >>> agenda.do_due()
        now
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage: tuple[float, Callable[[], None]] | None = None
        self._others: list[tuple[float, Callable[[], None]]] = []

    def plan(self, seconds: float, stage: Callable[[], None]) -> None:
        """Let a stage be due after some time, in place of any other stage.

        Args:
            seconds: The time from now.
            stage: What to call then.
        """
        self._stage = (self._clock() + seconds, stage)

    def add(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something be due besides the stage.

        Args:
            seconds: The time from now.
            action: What to call then.
        """
        self._others.append((self._clock() + seconds, action))

    def seconds_to_next(self) -> float | None:
        """Return how long nothing is due; None if nothing ever is."""
        stages = [] if self._stage is None else [self._stage]
        times = [due for due, _ in [*stages, *self._others]]
        return max(0.0, min(times) - self._clock()) if times else None

    def do_due(self) -> None:
        """Call what is due, each once."""
        now = self._clock()
        due = [action for seconds, action in self._others if seconds <= now]
        self._others = [other for other in self._others if other[0] > now]
        if self._stage is not None and self._stage[0] <= now:
            due.append(self._stage[1])
            self._stage = None
        for action in due:
            action()
