"""Timers of calls, steps and epochs that wait for the turn of their process."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from tfdist.benchmarks.turns import Turn

Functions = Mapping[str, Callable[[], object]]

# TensorFlow traces and connects in the first epoch; caches fill in the second.
WARM_UP_EPOCHS = 2
_CALLS_OF_A_TURN = 10
# Warm-up calls compile, fill caches, and synchronize the ranks after their sleep.
_WARM_UP_CALLS = 3


class StepTimer:
    """A mixin for Keras callbacks that times the steps of a `fit`, a block per turn."""

    def __init__(self, turn: Turn, steps: int) -> None:
        super().__init__()
        self.blocks: list[list[float]] = []
        self._turn = turn
        self._block_steps = steps
        self._last = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Wait for the turn before a block."""
        if batch % self._block_steps == 0:
            self._turn.take()
            self.blocks.append([])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the time since the previous step's end; pass the turn on if due."""
        # The first step of a block is left out, because the process slept before it.
        place, last = batch % self._block_steps, self._block_steps - 1
        has_gpu = place in (0, last) and self.wait_for_gpus()
        now = perf_counter()
        if place:
            self.blocks[-1].append(now - self._last)
        self._last = now
        if place == last:
            if has_gpu and last:
                # Other steps were launched, not done: each takes the mean.
                self.blocks[-1] = [sum(self.blocks[-1]) / last] * last
            self._turn.pass_on()

    def wait_for_gpus(self) -> bool:
        """Wait for the steps that were launched; return whether there is a GPU."""
        return False


class EpochMeter:
    """A mixin for Keras callbacks that measures the epochs of a `fit`, one per turn."""

    def __init__(
        self,
        turn: Turn,
        read: Callable[[], tuple[float, int | None]],
        on_warm: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._epochs: list[dict[str, Any]] = []
        self._turn = turn
        # Returns the job's processor seconds and bytes sent so far.
        self._read = read
        self._on_warm = on_warm
        self._before: tuple[float, float, int | None] = (0.0, 0.0, None)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The cost of each epoch after the warm-up; bytes are None if not counted."""
        return self._epochs[WARM_UP_EPOCHS:]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Wait for the turn, and read the counters."""
        if epoch == WARM_UP_EPOCHS:
            self._on_warm()
        self._turn.take()
        self._before = (perf_counter(), *self._read())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Read the counters again, and pass the turn on."""
        now = perf_counter()
        processors, sent = self._read()
        started, processors_before, sent_before = self._before
        sent_here = None
        if sent is not None and sent_before is not None:
            sent_here = sent - sent_before
        self._epochs.append(
            {
                "seconds": now - started,
                "processor_seconds": processors - processors_before,
                "sent_bytes": sent_here,
            }
        )
        self._turn.pass_on()


def time_sizes(
    turn: Turn,
    sizes_bytes: Sequence[int],
    repeats: int,
    make_functions: Callable[[int], Functions],
) -> list[dict[str, list[float]]]:
    """Return the seconds of each call of functions by name, for each size."""
    # Wait until the processes of all groups have started.
    turn.take()
    turn.pass_on()
    return [_time_calls(turn, make_functions(size), repeats) for size in sizes_bytes]


def _time_calls(
    turn: Turn, functions: Functions, repeats: int
) -> dict[str, list[float]]:
    """Time functions alternately, forwards and backwards, a few calls per turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = [*functions]
    for first in range(0, repeats, _CALLS_OF_A_TURN):
        turn.take()
        for call in range(-_WARM_UP_CALLS, min(_CALLS_OF_A_TURN, repeats - first)):
            for name in order:
                start = perf_counter()
                functions[name]()
                seconds = perf_counter() - start
                if call >= 0:
                    times[name].append(seconds)
            order.reverse()
        turn.pass_on()
    return times
