"""PrintLearningRate: the learning rate of each epoch, printed by the chief."""

from typing import Any

from tfdist.callbacks.epoch_line import EpochLine
from tfdist.callbacks.rates import current_rate


class PrintLearningRate(EpochLine):
    """Prints the learning rate that each epoch has ended with.

    The chief alone prints. With a schedule of Keras it is what the schedule gives for
    the next step.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.25), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(
        ...     x, x[:, :1], epochs=2, verbose=0, callbacks=[PrintLearningRate()]
        ... )
        epoch 1: learning rate 0.25
        epoch 2: learning rate 0.25
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the rate."""
        self._say(f"epoch {epoch + 1}: learning rate {current_rate(self.model):g}")
