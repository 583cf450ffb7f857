"""Program that measures what joins the ranks: time and memory of one process."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import tensorflow as tf

from tfdist.benchmarks.processes import run_program
from tfdist.benchmarks.turns import Turn
from tfdist.collectives import Collective, FusingCollective
from tfdist.estimate.profile import peak_bytes, reset_peak, resident_bytes
from tfdist.gradients import (
    BUCKET_BYTES,
    GradientReducer,
    HorovodReducer,
    plan_buckets,
)
from tfdist.strategies.connecting import connect

_SMALL_BYTES = 4096
_FLOAT_BYTES = 4
_WARM_UP_CALLS = 3


def measure(
    turn: Turn, *, engine: str, sizes_file: str, repeats: int
) -> dict[str, Any]:
    """Return the seconds of sums of gradients, and the bytes that they need."""
    turn.take()
    gradient_bytes: list[int] = json.loads(Path(sizes_file).read_text())
    before = resident_bytes()
    collective = connect(engine)
    runtime = resident_bytes() - before
    # A model may have sparse gradients only.
    sizes = gradient_bytes or [_SMALL_BYTES]
    cases = {
        "small": ("none", [_SMALL_BYTES]),
        "none": ("none", sizes),
        "fp16": ("fp16", sizes),
    }
    seconds, kept, most = {}, 0, 0
    for name, (compression, its) in cases.items():
        call = _reduction(collective, compression, its, name)
        reset_peak()
        begin = resident_bytes()
        seconds[name] = _times(collective, call, repeats)
        if name == "none":
            kept, most = resident_bytes() - begin, peak_bytes() - begin
    # Other libraries join them, or send them at once.
    messages = 1
    if engine == "tensorflow":
        messages = len(plan_buckets(sizes, ["float32"] * len(sizes), BUCKET_BYTES))
    return {
        "runtime": runtime,
        "messages": messages,
        "seconds": seconds,
        "kept": kept,
        "most": most,
    }


def _reduction(
    collective: Collective, compression: str, sizes_bytes: Sequence[int], name: str
) -> Callable[[], None]:
    """Return a function that sums gradients of these sizes, as a strategy does."""
    kind: Any = GradientReducer
    if isinstance(collective, FusingCollective):
        kind = HorovodReducer
    reducer = kind(collective, compression=compression)
    gradients = [
        tf.random.stateless_normal([max(1, size // _FLOAT_BYTES)], [0, 0])
        for size in sizes_bytes
    ]

    def reduce() -> Any:
        sums = reducer.reduce(gradients, f"gradients of {name}", are_shares=True)
        # As short as an update that reads them all.
        return tf.add_n([tf.reshape(total, [-1])[0] for total in sums])

    call: Callable[[], None] = tf.function(reduce)
    return call


def _times(
    collective: Collective, call: Callable[[], None], repeats: int
) -> list[float]:
    """Return the seconds of calls."""
    times = []
    for number in range(-_WARM_UP_CALLS, repeats):
        start = perf_counter()
        with collective.call("an all-reduce of the estimate"):
            call()
        if number >= 0:
            times.append(perf_counter() - start)
    return times


if __name__ == "__main__":
    run_program(measure)
