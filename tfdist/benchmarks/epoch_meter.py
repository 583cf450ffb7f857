"""Measuring the epochs of a `fit`, of Keras and of legacy tf-keras alike."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from tfdist.benchmarks.turns import Turn

# In the first, all is traced and connected; in the second, caches fill.
WARM_UP_EPOCHS = 2


@dataclass(frozen=True)
class Reading:
    """What a job has taken, from some beginning or in an epoch.

    Args:
        seconds: Of the clock.
        processor_seconds: Of all processes.
        sent_bytes: Between them; None where it cannot be counted.
    """

    seconds: float
    processor_seconds: float
    sent_bytes: int | None

    def since(self, before: "Reading") -> "Reading":
        """Return what was taken after an earlier reading.

        Args:
            before: The earlier reading.
        """
        sent = None
        if self.sent_bytes is not None and before.sent_bytes is not None:
            sent = self.sent_bytes - before.sent_bytes
        return Reading(
            self.seconds - before.seconds,
            self.processor_seconds - before.processor_seconds,
            sent,
        )


class EpochMeter:
    """Measures the epochs of one long `fit`, which has its turn an epoch at a time.

    Steps of asynchronous training overlap, so that none has a time of its own; an epoch
    ends when all of its steps have. Mixed with the `Callback` of a Keras it is a
    callback of that Keras.

    Args:
        turn: When this job may work.
        read: Returns seconds of processors and bytes sent, of the whole job.
        on_warm: Called when the epochs begin that count. Default: nothing.
    """

    def __init__(
        self,
        turn: Turn,
        read: Callable[[], tuple[float, int | None]],
        on_warm: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._epochs: list[Reading] = []
        self._turn = turn
        self._read = read
        self._on_warm = on_warm
        self._before = Reading(0.0, 0.0, None)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """What each epoch has taken, as JSON holds it, without those to warm up."""
        return [asdict(epoch) for epoch in self._epochs[WARM_UP_EPOCHS:]]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Wait for the turn, and read what was taken before."""
        if epoch == WARM_UP_EPOCHS:
            self._on_warm()
        self._turn.take()
        self._before = Reading(perf_counter(), *self._read())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Read what was taken, and pass the turn on."""
        seconds = perf_counter()
        self._epochs.append(Reading(seconds, *self._read()).since(self._before))
        self._turn.pass_on()
