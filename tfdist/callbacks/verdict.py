"""Verdict: where the time of an epoch went, and what to change."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import tensorflow as tf

from tfdist.callbacks.ranks import (
    EpochLine,
    collective_of,
    is_chief_of,
    times_of_ranks,
    times_since,
)
from tfdist.recorder.step_times import Finding, Shares, verdict

# The mark of TensorBoard's page of scalars.
_SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR"
)


class Verdict(EpochLine):
    """Callback that says after each epoch where the time of its steps went.

    The chief prints what to change, and the shares of input, compute, communication and
    waiting for others in a step, of a rank in the middle and of one that the others
    wait for. The cause stays that of the epoch before until another is clearly larger.
    Compute includes other callbacks. It covers the last steps of the epoch, 1,000 or
    more, without the first two, in which TensorFlow compiles, and the last. It prints
    nothing for shorter epochs, and in a process that trains alone.

    Args:
        log_dir: Folder in which the chief also writes the shares for TensorBoard, of
            each rank into a folder of its own, such as rank_0, which TensorBoard shows
            as a series of its own. Default None: it writes nothing.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[Verdict()])
    """

    _since = 0.0
    _found: Finding | None = None

    def __init__(self, *, log_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.log_dir = log_dir

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Discard the verdict on an earlier `fit`, and create the folder."""
        super().on_train_begin(logs)
        self._found = None
        # Fail early, not after the first epoch.
        if self.log_dir is not None and is_chief_of(self.model):
            tf.io.gfile.makedirs(os.fspath(self.log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the verdict on the previous epoch, and note where this one begins."""
        super().on_epoch_begin(epoch, logs)
        self._since = time.time()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Gather the times of all ranks."""
        own = times_since(self.model, self._since)
        exchange = collective_of(self.model).exchange
        times = times_of_ranks(exchange("the times of Verdict", own))
        if not times:
            return
        self._found = verdict(times, self._found)
        self._line = f"tfdist: epoch {epoch + 1}: {self._found}"
        if self.log_dir is not None and is_chief_of(self.model):
            _write(os.fspath(self.log_dir), epoch, self._found.shares)


def _write(log_dir: str, epoch: int, by_rank: Sequence[Shares]) -> None:
    """Write the shares of each rank for TensorBoard, which need not be installed."""
    for rank, shares in enumerate(by_rank):
        writer = tf.summary.create_file_writer(os.path.join(log_dir, f"rank_{rank}"))
        with writer.as_default():
            for name, share in asdict(shares).items():
                value = tf.constant(share, tf.float32)
                tf.summary.write(f"step/{name}", value, epoch, _SCALARS)
        writer.close()
