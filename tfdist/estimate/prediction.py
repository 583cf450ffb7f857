"""Predictions of a rank's speed, bytes sent and memory, from measurements of two."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from tfdist.estimate.costs import (
    Cost,
    Link,
    Ready,
    all_reduce_seconds,
    hops_of,
    ring,
    slowest,
    step_seconds,
)


@dataclass(frozen=True)
class Message:
    """A collective of a step.

    Attributes:
        kind: Its name in `Collective`, such as "all_reduce".
        size_bytes: The bytes that this rank gives.
        begin: The part of a step, from 0 to 1, after which its tensors are computed.
        is_gradient: Whether the step goes on while it is under way.
    """

    kind: str
    size_bytes: float
    begin: float
    is_gradient: bool = True

    def equivalent_bytes(self, ranks: int) -> float:
        """Return the bytes whose all-reduce sends as many as this collective does."""
        if self.kind == "all_reduce":
            return self.size_bytes
        # Each rank gives some rows, and all get those of all.
        return self.size_bytes * (ranks if self.kind == "all_gather" else 1) / 2


@dataclass
class Profile:
    """Measurements of a process that trains alone.

    Attributes:
        ranks: The number of ranks of which it took itself for one.
        rows: Its rows of a batch.
        step_seconds: The times of its steps.
        messages: The collectives of an update.
        micro_steps: The steps of an update (`gradient_accumulation_steps`).
        gradient_bytes: The bytes of all dense gradients.
        peak_bytes: The most bytes that were in memory.
        is_of_gpu: Whether that is the memory of its GPU, and not of the host.
    """

    ranks: int = 1
    rows: int = 0
    step_seconds: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    micro_steps: int = 1
    gradient_bytes: int = 0
    peak_bytes: int = 0
    is_of_gpu: bool = False


@dataclass(frozen=True)
class Calibration:
    """Sums over ranks of this machine.

    Attributes:
        ranks: The number of ranks.
        small_seconds: The time of a sum of few bytes.
        size_bytes: The bytes of a large sum.
        seconds: The time of that.
    """

    ranks: int
    small_seconds: float
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """What was measured: the script on one rank, and on one of many; and sums."""

    alone: Profile
    largest: Profile
    calibration: Calibration | None
    network: Link
    engine: str = "tensorflow"
    per_host: int = 1

    @property
    def is_strong(self) -> bool:
        """Whether all ranks share one batch, in place of each having its own."""
        return self.largest.rows < self.alone.rows

    def rows_of(self, ranks: int) -> float:
        """Return the rows of a rank of so many."""
        return self.alone.rows / (ranks if self.is_strong else 1)

    def between(self, ranks: int, value: Callable[[Profile], float]) -> float:
        """Return a value of a rank of so many, on a line through what was measured."""
        one, many = self.alone, self.largest
        if one.ranks == many.ranks:
            return value(one)
        share = (ranks - one.ranks) / (many.ranks - one.ranks)
        if self.is_strong:
            share = (one.rows - self.rows_of(ranks)) / (one.rows - many.rows)
        return value(one) + share * (value(many) - value(one))


@dataclass(frozen=True)
class Prediction:
    """Figures of a rank of so many; bytes and seconds are those of an update."""

    ranks: int
    rows: float
    seconds: float
    examples_per_second: float
    efficiency: float
    sent_bytes: float
    peak_bytes: float


def predict(measured: Measured, ranks: int) -> Prediction:
    """Predict the figures of a rank of so many."""
    alone, rows = measured.alone, measured.rows_of(ranks)
    messages = _messages(measured, ranks)
    compute = _compute_seconds(measured, ranks)
    ready = [
        Ready(each.begin * compute, each.equivalent_bytes(ranks), each.is_gradient)
        for each in messages
    ]
    cost = partial(_cost, measured, ranks)
    fuses = measured.engine == "horovod"
    seconds = compute * (alone.micro_steps - 1)
    seconds += step_seconds(compute, ready, cost, fuses=fuses)
    rate = rows * ranks * alone.micro_steps / seconds
    # As many as a ring sends.
    given = sum(each.equivalent_bytes(ranks) for each in messages)
    # A script may make the data of all ranks on each of them.
    peak = measured.between(ranks, lambda profile: profile.peak_bytes)
    # Gradients are copied into the buckets that are sent.
    buffers = 0 if ranks == 1 else measured.largest.gradient_bytes
    return Prediction(
        ranks,
        rows,
        seconds,
        examples_per_second=rate,
        efficiency=rate * _compute_seconds(measured, 1) / ranks / alone.rows,
        sent_bytes=given * 2 * (ranks - 1) / ranks,
        peak_bytes=peak + buffers,
    )


def _messages(measured: Measured, ranks: int) -> list[Message]:
    """Return the collectives of an update; a single process has none."""
    if ranks == 1:
        return []
    # A rank gives the rows that its part of a shared batch names.
    share = measured.rows_of(ranks) / max(1, measured.largest.rows)
    return [
        replace(each, size_bytes=each.size_bytes * share)
        if each.kind == "all_gather" and each.is_gradient
        else each
        for each in measured.largest.messages
    ]


def _compute_seconds(measured: Measured, ranks: int) -> float:
    """Return the seconds of a step of the slowest rank without any transfer."""
    profile = measured.alone if ranks == 1 else measured.largest
    times = profile.step_seconds
    middle = median(times)
    if measured.is_strong:
        middle = measured.between(ranks, lambda each: median(each.step_seconds))
    return middle * slowest(times, ranks) / median(times)


def _cost(measured: Measured, ranks: int, size_bytes: float) -> Cost:
    """Return the cost of an all-reduce of a message on so many ranks."""
    engine, calibration, network = (
        measured.engine,
        measured.calibration,
        measured.network,
    )
    assert calibration is not None, "several ranks were measured"
    here, small = calibration.ranks, calibration.small_seconds
    latency = small / hops_of(engine, here)
    # The rest of the time goes by bytes, of which a ring sends these.
    sent = 2 * (here - 1) / here * max(1, calibration.size_bytes)
    link = Link(latency, max(0.0, calibration.seconds - small) / sent)
    if ranks <= measured.per_host:
        return Cost(all_reduce_seconds(engine, size_bytes, ranks, link))
    outer = Link(network.latency_seconds + latency, network.seconds_per_byte)
    # Each rank adds and copies what it sends.
    copies = ring(size_bytes, ranks, Link(0.0, link.seconds_per_byte))
    return Cost(copies, all_reduce_seconds(engine, size_bytes, ranks, outer))
