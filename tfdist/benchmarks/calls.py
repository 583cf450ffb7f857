"""Timing calls of several ways to do a thing, in alternation."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from tfdist.benchmarks.turns import Turn

Ways = Mapping[str, Callable[[], object]]

_CALLS_OF_A_TURN = 10
# They compile, fill the caches, and bring the ranks together after they have slept.
_WARM_UP_CALLS = 3


def time_sizes(
    turn: Turn,
    sizes_bytes: Sequence[int],
    repeats: int,
    make_ways: Callable[[int], Ways],
) -> list[dict[str, list[float]]]:
    """Time what processes do together with tensors of several sizes.

    Args:
        turn: When this process may work.
        sizes_bytes: The sizes of the tensors.
        repeats: Timed calls for each size.
        make_ways: Called with a size; returns the ways to do it, by name.

    Returns:
        For each size the seconds of each call, by the name of the way.
    """
    # Nothing is timed while processes of another group still start.
    turn.take()
    turn.pass_on()
    return [_time_ways(turn, make_ways(size), repeats) for size in sizes_bytes]


def _time_ways(turn: Turn, ways: Ways, repeats: int) -> dict[str, list[float]]:
    """Time all ways in alternation, a few calls in each turn.

    They go forwards and backwards, so that none always follows the same one.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = [*ways]
    for first in range(0, repeats, _CALLS_OF_A_TURN):
        turn.take()
        for call in range(-_WARM_UP_CALLS, min(_CALLS_OF_A_TURN, repeats - first)):
            for name in order:
                start = perf_counter()
                ways[name]()
                seconds = perf_counter() - start
                if call >= 0:
                    times[name].append(seconds)
            order.reverse()
        turn.pass_on()
    return times
