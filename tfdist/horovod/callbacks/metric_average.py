"""MetricAverageCallback: the mean over ranks in the logs of each epoch."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks.metric_average import check_equal_names
from tfdist.horovod.native import native


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces each value in the logs of an epoch by its mean over all ranks.

    Without a strategy every rank measures its own part of the data. Callbacks that come
    later in the list, and `fit` itself, see the mean; so put this one before
    `ReduceLROnPlateau`, `EarlyStopping`, `ModelCheckpoint` and `TensorBoard`, which
    then decide alike on all ranks. Each rank counts the same, however much data it had.

    In Horovod, ranks whose logs hold different names wait for each other for ever. Here
    all of them get an error that says who lacks what.

    Args:
        device: Device of TensorFlow that sends and receives, such as "/cpu:0". Default
            "": TensorFlow decides.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> average = MetricAverageCallback()
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[average])
        >>> sorted(history.history)
        ['loss']
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the means into the logs, in place.

        Raises:
            RuntimeError: On every rank, if the ranks log different names.
        """
        logs = {} if logs is None else logs
        own = {name: np.asarray(value, "float64") for name, value in logs.items()}
        with tf.device(self.device):
            everyone = native.allgather_object(own, name="tfdist.logs")
        check_equal_names("MetricAverageCallback", [set(one) for one in everyone])
        for name in own:
            mean = np.mean([one[name] for one in everyone], axis=0)
            logs[name] = float(mean) if mean.ndim == 0 else mean
