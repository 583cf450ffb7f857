"""Callback of the chief that tells the launcher's terminal how far a `fit` is."""

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import keras

from tfdist.cluster.detect import detect_membership
from tfdist.cluster.launcher import Launcher
from tfdist.compat.keras.losses_and_metrics import mean_loss_of

_SECONDS = 1.0


class StatusLine(keras.callbacks.Callback):
    """Writer of epoch, step, rate and time left, at most once a second."""

    def __init__(self, size: int, *, show: Callable[[str], None]) -> None:
        super().__init__()
        self._size, self._show = size, show
        # A custom loop may leave out the begin of the training, or of an epoch.
        self.on_train_begin()
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the counts."""
        # The steps of earlier epochs, and of this one.
        self._before = self._steps = 0
        # Time and steps at the first line and at the last.
        self._first: tuple[float, int] | None = None
        self._last = -_SECONDS, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps anew."""
        self._epoch = epoch
        self._before, self._steps = self._before + self._steps, 0

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Tell how far the `fit` is, unless it was told a moment ago."""
        now, self._steps = monotonic(), batch + 1
        if self._first is None or now - self._last[0] >= _SECONDS:
            self._show(self._text(now))
            self._last = now, self._before + self._steps
            # The first step was compiled.
            self._first = self._first or self._last

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Remove the line."""
        self._show("")

    def _text(self, now: float) -> str:
        """Return the line."""
        epochs, length = ((self.params or {}).get(name) for name in ("epochs", "steps"))
        parts = [
            f"{what} {number}" + ("" if whole is None else f"/{whole}")
            for what, number, whole in (
                ("epoch", self._epoch + 1, epochs),
                ("step", self._steps, length),
            )
        ]
        if self._first is not None:
            parts.append(self._rate(now))
        if self._first is not None and epochs is not None and length is not None:
            began, first = self._first
            step_seconds = (now - began) / (self._before + self._steps - first)
            left = (epochs - self._epoch) * length - self._steps
            parts.append(f"{timedelta(seconds=round(left * step_seconds))} left")
        return ", ".join(parts)

    def _rate(self, now: float) -> str:
        """Return the rate since the last line, in examples if Keras counts them."""
        seconds, steps = self._last
        rate = (self._before + self._steps - steps) / (now - seconds)
        tracker = mean_loss_of(self.model)
        # Only all ranks together can read a count on several devices.
        if tracker is not None and not hasattr(tracker.count.value, "values"):
            counted = float(keras.ops.cast(tracker.count, "float64"))
            # A mean of numbers counts each step once.
            if counted > self._steps:
                rate *= counted / self._steps * self._size
                return f"{_short(rate)} examples/s"
        return f"{_short(rate)} steps/s"


def status_lines() -> list[StatusLine]:
    """Return the callback that the launcher asks this chief for, if it does."""
    member = detect_membership()
    launcher = Launcher()
    # With parameter servers, steps are in flight.
    if member.cluster.ps or not launcher.asks_for_status():
        return []
    return [StatusLine(member.size, show=launcher.note_status)]


def _short(rate: float) -> str:
    """Return a rate in whole numbers, or in two digits if it is low."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
