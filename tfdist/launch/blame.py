"""Which of several failed ranks is the cause, and which have only followed."""

from collections.abc import Iterable
from dataclasses import dataclass

# A traceback from longer before a rank's end was not the reason of its failure.
_TEARDOWN_SECONDS = 10.0
# The kernel closes the connections of a process that it kills before anybody is told of
# its end; on a busy machine peers fail in between.
_UNNOTICED_SECONDS = 1.0


@dataclass(frozen=True)
class Failure:
    """When a rank failed; both times are on one clock, in seconds.

    Args:
        rank: The number of the rank.
        ended_seconds: When its process ended.
        traceback_seconds: When its last traceback was printed; infinite without one.
        was_killed: Whether somebody else than the launcher has ended it by SIGKILL,
            which no peer's failure does.
    """

    rank: int
    ended_seconds: float
    traceback_seconds: float = float("inf")
    was_killed: bool = False

    @property
    def failed_seconds(self) -> float:
        """When it failed: Python prints the traceback first, then it cleans up.

        TensorFlow can take longer for that than a peer takes to see that the rank is
        gone and to abort.
        """
        if self.was_killed:
            return self.ended_seconds - _UNNOTICED_SECONDS
        earliest = self.ended_seconds - _TEARDOWN_SECONDS
        if earliest < self.traceback_seconds < self.ended_seconds:
            return self.traceback_seconds
        return self.ended_seconds


def first_failure(failures: Iterable[Failure]) -> int:
    """Return the rank that failed first.

    Args:
        failures: The failures, at least one.

    Returns:
        Its number.

    Example:
        >>> first_failure([Failure(0, 8.0, traceback_seconds=5.0), Failure(1, 6.0)])
        0
    """
    return min(failures, key=lambda failure: failure.failed_seconds).rank
