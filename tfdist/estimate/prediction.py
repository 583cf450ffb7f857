"""Predictions of time and memory on more ranks, from measurements of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from tfdist.estimate.costs import (
    Cost,
    Link,
    Ready,
    exchanges_of,
    halving_and_doubling,
    interpolated,
    recursive_doubling,
    ring,
    slowest,
    step_seconds,
    two_levels,
)
from tfdist.estimate.profile import Message, Profile
from tfdist.scaling.owners import largest_share

# Doubling the ranks pays if it gives so many times the examples per second.
PAYS = 1.25
_MOST_RANKS = 2**16
_MICRO_STEPS = 4
# Gradients sent in two bytes have less than this share of their own bytes.
_COMPRESSED_SHARE = 0.6


@dataclass(frozen=True)
class Calibration:
    """Measurements of sums of gradients over ranks of this machine.

    Attributes:
        ranks: The number of ranks.
        size_bytes: The bytes of the gradients.
        messages: The number of messages in which they are sent.
        small_seconds: The time of a small message.
        seconds: The time of the gradients.
        fp16_seconds: Their time with `compression="fp16"`.
        runtime: The bytes that the engine needs in each process.
        kept: The bytes that remain in use between sums.
        most: The most bytes in use.
    """

    ranks: int
    size_bytes: int
    messages: int
    small_seconds: float
    seconds: float
    fp16_seconds: float
    runtime: int = 0
    kept: int = 0
    most: int = 0


@dataclass(frozen=True)
class Measured:
    """What was measured: the script by ranks, and sums by ranks of this machine."""

    profiles: Mapping[int, Sequence[Profile]]
    calibrations: Mapping[int, Calibration]
    engine: str = "tensorflow"
    network: Link | None = None
    per_host: int = 1

    @property
    def alone(self) -> Profile:
        """The script in a single process."""
        return self.profiles[1][0]

    @property
    def largest(self) -> Profile:
        """The script as one of the most ranks that were measured."""
        return self.profiles[max(self.profiles)][0]

    @property
    def is_strong(self) -> bool:
        """Whether all ranks share one batch, in place of each having its own."""
        return self.largest.rows < self.alone.rows

    def rows_of(self, ranks: int) -> float:
        """Return the rows of a rank of so many."""
        return self.alone.rows / (ranks if self.is_strong else 1)


@dataclass(frozen=True)
class Variant:
    """A change of the script."""

    name: str = "as it is"
    fp16: bool = False
    shard_optimizer: bool = False
    micro_steps: int = 1


FP16 = Variant("fp16", fp16=True)
SHARDED = Variant("shard_optimizer", shard_optimizer=True)
ACCUMULATED = Variant(f"{_MICRO_STEPS} batches an update", micro_steps=_MICRO_STEPS)


@dataclass(frozen=True)
class Prediction:
    """Figures of a rank of so many; bytes and seconds are those of an update."""

    ranks: int
    rows: float
    seconds: float
    examples_per_second: float
    efficiency: float
    epochs_per_hour: float | None
    sent_bytes: float
    # By kind; their sum is the peak.
    memory: Mapping[str, float]

    @property
    def peak_bytes(self) -> float:
        """The most bytes of a rank that are in use."""
        return sum(self.memory.values())


def predict(
    measured: Measured, ranks: int, variant: Variant | None = None
) -> Prediction:
    """Predict the figures of a rank of so many."""
    variant = Variant() if variant is None else variant
    rows = measured.rows_of(ranks)
    messages = _messages(measured, ranks)
    seconds = _update_seconds(measured, ranks, messages, variant)
    micro_steps = measured.alone.micro_steps * variant.micro_steps
    rate = rows * ranks * micro_steps / seconds
    alone = measured.alone
    alone_seconds = _compute_seconds(measured, 1)
    examples = alone.rows * (alone.steps_of_epoch or 0)
    halved = variant.fp16 and not is_compressed(measured)
    return Prediction(
        ranks,
        rows,
        seconds,
        rate,
        rate / ranks / (alone.rows / alone_seconds),
        3600 * rate / examples if examples else None,
        sum(_sent_bytes(each, ranks, halved=halved) for each in messages),
        _memory(measured, ranks, variant),
    )


def is_compressed(measured: Measured) -> bool:
    """Return whether the script sends its gradients in two bytes already."""
    profile = measured.largest
    sent = sum(
        each.size_bytes
        for each in profile.messages
        if each.is_gradient and each.kind != "all_gather"
    )
    return 0 < sent < _COMPRESSED_SHARE * profile.memory.gradients


def stops_paying(measured: Measured) -> int | None:
    """Return the ranks from which on doubling pays no more; None if it always does."""
    most = max(measured.profiles)
    if measured.network and most > 1:
        most = _MOST_RANKS
    if measured.is_strong:
        most = min(most, int(measured.alone.rows))
    ranks, rate = 1, predict(measured, 1).examples_per_second
    while 2 * ranks <= most:
        doubled = predict(measured, 2 * ranks).examples_per_second
        if doubled < PAYS * rate:
            return ranks
        ranks, rate = 2 * ranks, doubled
    return None


def _messages(measured: Measured, ranks: int) -> list[Message]:
    """Return the collectives of an update; a single process has none."""
    if ranks == 1:
        return []
    # A rank gives the rows that its part of a shared batch names.
    rows = measured.largest.rows
    share = measured.rows_of(ranks) / rows if measured.is_strong and rows else 1
    return [
        replace(each, size_bytes=each.size_bytes * share)
        if each.kind == "all_gather" and each.is_gradient
        else each
        for each in measured.largest.messages
    ]


def _compute_seconds(measured: Measured, ranks: int) -> float:
    """Return the seconds of a step of the slowest rank without any transfer."""
    profiles = measured.profiles
    if ranks in profiles:
        near = profiles[ranks]
        middle = median(s for profile in near for s in profile.step_seconds)
    else:
        near = [measured.largest] if ranks > 1 else [measured.alone]
        points = [(each.rows, each.median_seconds) for [each, *_] in profiles.values()]
        rows = measured.rows_of(ranks)
        middle = interpolated(points, rows) if measured.is_strong else points[-1][1]
    # Of processes that share this machine, each is like itself.
    jitter = [
        s / profile.median_seconds for profile in near for s in profile.step_seconds
    ]
    return middle * slowest(jitter, ranks)


def _update_seconds(
    measured: Measured, ranks: int, messages: Sequence[Message], variant: Variant
) -> float:
    """Return the seconds of an update with its transfers."""
    compute = _compute_seconds(measured, ranks)
    micro_steps = measured.alone.micro_steps * variant.micro_steps
    if ranks == 1:
        return compute * micro_steps
    ready = [
        Ready(
            each.begin * compute,
            equivalent_bytes(each, ranks),
            overlaps=each.is_gradient,
        )
        for each in messages
    ]
    is_horovod = measured.engine == "horovod"
    cost = partial(_cost, measured, ranks, fp16=variant.fp16)
    last = step_seconds(compute, ready, cost, fuses=is_horovod)
    return compute * (micro_steps - 1) + last


def equivalent_bytes(message: Message, ranks: int) -> float:
    """Return the bytes whose all-reduce sends as many as this collective does."""
    if message.kind == "all_reduce":
        return message.size_bytes
    # Each rank gives some rows, and all get those of all.
    whole = message.kind == "all_gather"
    return message.size_bytes * (ranks if whole else 1) / 2


def _sent_bytes(message: Message, ranks: int, *, halved: bool) -> float:
    """Return the bytes that a rank sends, as a ring does."""
    sent = equivalent_bytes(message, ranks) * 2 * (ranks - 1) / ranks
    return sent / 2 if halved and message.is_gradient else sent


def _cost(
    measured: Measured, ranks: int, size_bytes: float, *, fp16: bool = False
) -> Cost:
    """Return the cost of an all-reduce of a message on so many ranks."""
    calibration = _calibration(measured, ranks)
    is_halved = fp16 and not is_compressed(measured)
    whole = calibration.fp16_seconds if is_halved else calibration.seconds
    here = calibration.ranks
    hops = hops_of(measured.engine, here)
    small = calibration.small_seconds
    latency = small / hops
    # The rest of the time goes by bytes, of which a ring sends these.
    sent = 2 * (here - 1) / here * max(1, calibration.size_bytes)
    link = Link(latency, max(0.0, whole - calibration.messages * small) / sent)
    network = measured.network
    if network is None or ranks <= measured.per_host:
        return Cost(ring_like(measured.engine, size_bytes, ranks, link))
    outer = Link(network.latency_seconds + latency, network.seconds_per_byte)
    if is_halved:
        outer = Link(outer.latency_seconds, outer.seconds_per_byte / 2)
    transfer = ring_like(measured.engine, size_bytes, ranks, outer)
    if measured.engine == "mpi" and measured.per_host > 1:
        # Open MPI adds up within hosts first.
        levels = two_levels(size_bytes, ranks, measured.per_host, link, outer)
        transfer = min(transfer, levels)
    # Each rank adds and copies what it sends.
    bytes_alone = Link(0.0, link.seconds_per_byte)
    return Cost(ring(size_bytes, ranks, bytes_alone), transfer)


def hops_of(engine: str, ranks: int) -> int:
    """Return how many messages follow each other in an all-reduce of few bytes."""
    return exchanges_of(ranks) if engine == "mpi" else 2 * (ranks - 1)


def ring_like(engine: str, size_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of the all-reduce that an engine chooses."""
    algorithms = [ring]
    if engine == "mpi":
        # It chooses by the size.
        algorithms += [recursive_doubling, halving_and_doubling]
    return min(each(size_bytes, ranks, link) for each in algorithms)


def _calibration(measured: Measured, ranks: int) -> Calibration:
    """Return the measurements with the nearest number of ranks."""
    nearest = min(measured.calibrations, key=lambda size: abs(size - ranks))
    return measured.calibrations[nearest]


def _memory(measured: Measured, ranks: int, variant: Variant) -> dict[str, float]:
    """Return the bytes of a rank at its peak, by kind."""
    profile = measured.alone if ranks == 1 else measured.largest
    if ranks in measured.profiles:
        profile = measured.profiles[ranks][0]
    memory = profile.memory
    program, activations = float(memory.program), float(memory.activations)
    if ranks not in measured.profiles:
        ends = (measured.alone, measured.largest)
        # A script may make the data of all ranks on each of them.
        programs = [(end.ranks, end.memory.program) for end in ends]
        program = interpolated(programs, ranks)
        x = measured.rows_of(ranks) if measured.is_strong else ranks
        points = [
            (end.rows if measured.is_strong else end.ranks, end.memory.activations)
            for end in ends
        ]
        activations = max(0.0, interpolated(points, x))
    accumulates = variant.micro_steps > 1 and profile.micro_steps == 1
    kinds = {
        "program": program,
        "weights": float(memory.weights),
        "gradients": float(memory.gradients) * (2 if accumulates else 1),
        "optimizer": _optimizer_bytes(measured, ranks, variant),
        "activations": activations,
        "buffers": 0.0,
    }
    if ranks > 1:
        calibration = _calibration(measured, ranks)
        runtime = max(0, calibration.runtime - profile.runtime_bytes)
        # The most buffers are in use when the activations are not any more.
        at_once = max(calibration.kept, calibration.most - activations)
        kinds["buffers"] = runtime + max(0.0, at_once)
    return kinds


def _optimizer_bytes(measured: Measured, ranks: int, variant: Variant) -> float:
    """Return the bytes of the optimizer's variables on the rank with the most."""
    profile, whole = measured.largest, float(measured.alone.memory.optimizer)
    if not (variant.shard_optimizer or profile.is_sharded):
        return whole
    # Accumulated gradients stay whole.
    kept = sum(profile.weight_bytes) if profile.micro_steps > 1 else 0
    share = largest_share(profile.weight_bytes, ranks, profile.divisible)
    return kept + (whole - kept) * share
