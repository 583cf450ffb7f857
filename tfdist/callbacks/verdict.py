"""Verdict: where the time of an epoch went, and what to change."""

import time
from typing import Any

from tfdist.callbacks.ranks import (
    EpochLine,
    collective_of,
    times_of_ranks,
    times_since,
)
from tfdist.scaling import verdict


class Verdict(EpochLine):
    """Callback that says after each epoch where the time of its steps went.

    The chief prints one sentence: the shares of input, compute, communication and
    waiting for other ranks in a step, on the slowest and on the median rank, and what
    to change. Compute includes other callbacks. It covers the last steps of the epoch,
    1,000 or more, without the first two, in which TensorFlow compiles, and the last.
    It prints nothing for shorter epochs, and in a process that trains alone.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[Verdict()])
    """

    _since = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the verdict on the previous epoch, and note where this one begins."""
        super().on_epoch_begin(epoch, logs)
        self._since = time.time()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gather the times of all ranks."""
        own = times_since(self.model, self._since)
        exchange = collective_of(self.model).exchange
        times = times_of_ranks(exchange("the times of Verdict", own))
        if times:
            self._line = f"tfdist: epoch {epoch + 1}: {verdict(times)}"
