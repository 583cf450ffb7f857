"""Who does which part of a batch, and who does one again: arithmetic alone.

References:
    Dean and Ghemawat, "MapReduce: Simplified Data Processing on Large Clusters", 2004,
    section 3.6, on backup tasks.
    Zaharia et al., "Improving MapReduce Performance in Heterogeneous Environments",
    2008, on which task to do again.
    Chen et al., "Revisiting Distributed Synchronous SGD", 2016, on backup workers.
"""

from collections import deque
from math import inf
from statistics import median

# So many of its last parts say how long a worker takes: a stray one says nothing.
_REMEMBERED = 5
# A part is done again if that ends it so much earlier: paces are never quite alike.
_GAIN = 1.25
# A worker that takes so many times as long as it does otherwise is held up.
_HELD_UP = 2.0


class Paces:
    """How long each worker takes for a part, as it has been of late."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def note(self, worker: int, seconds: float) -> None:
        """Note that a worker has done a part.

        Args:
            worker: Its index.
            seconds: How long it has taken.
        """
        of_worker = self._seconds.setdefault(worker, deque(maxlen=_REMEMBERED))
        of_worker.append(seconds)

    def of(self, worker: int) -> float | None:
        """Return how many seconds a worker takes; None if it has done no part yet.

        Args:
            worker: Its index.
        """
        seconds = self._seconds.get(worker)
        return None if seconds is None else median(seconds)


class Parts:
    """The parts of one batch, each of which several workers may be doing.

    A worker that is free takes a part that nobody has begun. If there is none, it does
    again one that will else arrive later than it could: a part of a worker that is slow
    by what is known of it, at once, and one of a worker that is held up, when it has
    taken twice as long as it does otherwise. A worker of which nothing is known may
    never arrive.

    Args:
        count: How many parts there are.
        paces: How long the workers take; is told of each part that is done.
    """

    def __init__(self, count: int, paces: Paces) -> None:
        self._paces = paces
        self._new = deque(range(count))
        self._missing = set(range(count))
        # When each worker began the part that it is at, by part and worker.
        self._begun: dict[int, dict[int, float]] = {part: {} for part in range(count)}

    @property
    def are_done(self) -> bool:
        """Whether each part has arrived."""
        return not self._missing

    def begin(self, worker: int, now: float) -> int | None:
        """Give a free worker a part.

        Args:
            worker: Its index.
            now: The time, in seconds.

        Returns:
            The part; None if there is none that it should do now, see `next_at`.
        """
        part: int | None = None
        if self._new:
            part = self._new.popleft()
        else:
            soon = now + _GAIN * (self._paces.of(worker) or 0.0)
            ends = {one: self._end(one, now) for one in self._others(worker)}
            late = [one for one, end in ends.items() if end >= soon]
            part = max(late, key=ends.__getitem__, default=None)
        if part is not None:
            self._begun[part][worker] = now
        return part

    def next_at(self, worker: int) -> float | None:
        """Return when a free worker is to ask again, if nothing else happens before.

        Args:
            worker: Its index.

        Returns:
            The time, in seconds; None if there is nothing to ask for.
        """
        own = _GAIN * (self._paces.of(worker) or 0.0)
        times = [
            max(
                begun + max(_HELD_UP * (self._paces.of(other) or 0.0), own)
                for other, begun in self._begun[part].items()
            )
            for part in self._others(worker)
        ]
        return min(times, default=None)

    def end(self, worker: int, part: int, now: float, *, has_arrived: bool) -> None:
        """Note that a worker is no longer at a part.

        Args:
            worker: Its index.
            part: The part.
            now: The time, in seconds.
            has_arrived: Whether it has done it; if not, another must.
        """
        begun = self._begun[part].pop(worker)
        if has_arrived:
            self._paces.note(worker, now - begun)
            self._missing.discard(part)
        elif part in self._missing and not self._begun[part]:
            self._new.append(part)

    def _others(self, worker: int) -> list[int]:
        """Return the parts that others are at, and this worker is not."""
        begun = self._begun
        return [p for p in sorted(self._missing) if begun[p] and worker not in begun[p]]

    def _end(self, part: int, now: float) -> float:
        """Return when a part is to be expected from those who are at it."""
        ends = []
        for worker, begun in self._begun[part].items():
            pace = self._paces.of(worker)
            if pace is None:
                ends.append(inf)
            elif now - begun < _HELD_UP * pace:
                ends.append(begun + pace)
            else:
                # Of what is held up nothing is known but for how long it has been.
                ends.append(now + (now - begun))
        return min(ends)
