"""Time of an all-reduce, and of a step that it overlaps, by the alpha-beta model.

A message takes alpha seconds, whatever its size, and beta seconds for each byte
(Hockney 1994, "The communication challenge for MPP"). The algorithms are those of
Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH".
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Connection of two neighbours.

    Attributes:
        latency_seconds: Alpha, the time of an empty message.
        seconds_per_byte: Beta, the time of each byte.
    """

    latency_seconds: float
    seconds_per_byte: float


@dataclass(frozen=True)
class Cost:
    """Seconds in which the processor works, and in which the network does."""

    processor: float
    network: float = 0.0

    @property
    def seconds(self) -> float:
        """The duration; processor and network work at the same time."""
        return max(self.processor, self.network)


@dataclass(frozen=True)
class Ready:
    """A message of a step, and how long after the begin of the step it is computed."""

    seconds: float
    size_bytes: float
    # Whether the step goes on meanwhile, as after a bucket of gradients.
    overlaps: bool = True


def ring(size_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of an all-reduce in which each rank sends to its neighbour.

    Each of n ranks sends an n-th of the tensor to the next one, 2 (n - 1) times.
    """
    hops = 2 * (ranks - 1)
    return hops * (link.latency_seconds + size_bytes / ranks * link.seconds_per_byte)


def recursive_doubling(size_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of an all-reduce of the whole tensor, with few messages."""
    return exchanges_of(ranks) * (
        link.latency_seconds + size_bytes * link.seconds_per_byte
    )


def halving_and_doubling(size_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of Rabenseifner's all-reduce: few messages, few bytes."""
    pairs = ranks.bit_length() - 1
    # What are more than a power of two give all to a neighbour, and get it back.
    extra = exchanges_of(ranks) - pairs
    bytes_sent = (2 * (1 - 0.5**pairs) + extra) * size_bytes
    messages = 2 * pairs + extra
    return messages * link.latency_seconds + bytes_sent * link.seconds_per_byte


def exchanges_of(ranks: int) -> int:
    """Return how many exchanges give each rank what all have, in doubling groups."""
    pairs = ranks.bit_length() - 1
    return pairs if ranks == 2**pairs else pairs + 2


def hops_of(engine: str, ranks: int) -> int:
    """Return how many messages follow each other in an all-reduce of few bytes."""
    return exchanges_of(ranks) if engine == "mpi" else 2 * (ranks - 1)


def all_reduce_seconds(engine: str, size_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of the all-reduce that an engine chooses."""
    algorithms = [ring]
    if engine == "mpi":
        algorithms += [recursive_doubling, halving_and_doubling]
    return min(algorithm(size_bytes, ranks, link) for algorithm in algorithms)


def step_seconds(
    compute_seconds: float,
    messages: Sequence[Ready],
    cost: Callable[[float], Cost],
    *,
    fuses: bool = False,
) -> float:
    """Return the seconds of a step whose messages are sent while it computes.

    Messages go one after the other. The processor time of each, by its bytes, delays
    what the step computes after it. `fuses` tells that messages which wait at the same
    time are sent as one.
    """
    waiting = deque(sorted(messages, key=lambda message: message.seconds))
    delay = free = 0.0
    while waiting:
        first = waiting.popleft()
        begin, size = max(free, first.seconds + delay), first.size_bytes
        while fuses and waiting and waiting[0].seconds + delay <= begin:
            size += waiting.popleft().size_bytes
        spent = cost(size)
        free = begin + spent.seconds
        delay = (delay + spent.processor) if first.overlaps else free - first.seconds
    return max(compute_seconds + delay, free)


def slowest(samples: Sequence[float], ranks: int) -> float:
    """Return the median of the slowest of so many ranks, each like the samples.

    All of n independent ranks are done by a time with the n-th power of the probability
    of one. Beyond the samples nothing is known, so the largest one is the limit.
    """
    ordered = sorted(samples)
    position = float(0.5 ** (1 / ranks)) * (len(ordered) - 1)
    low = int(position)
    above = ordered[min(low + 1, len(ordered) - 1)] - ordered[low]
    return ordered[low] + (position - low) * above
