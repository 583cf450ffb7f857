"""RankZero: any callback, on the chief alone."""

from typing import Any

import keras

from tfdist.callbacks.peers import collective_of, has_strategy, is_chief_of
from tfdist.compat.keras.callbacks import Wraps
from tfdist.compat.keras.learning_rates import learning_rate_variables

_HOOKS = tuple(
    name
    for name in dir(keras.callbacks.Callback)
    if name.startswith("on_") and name != "on_epoch_end"
)


class RankZero(keras.callbacks.Callback, Wraps):  # type: ignore[misc]
    """Lets a callback run on the chief only, such as one that writes files or sends.

    What it decides holds for all ranks: when to stop, and the learning rate; with
    `tfdist.horovod` from the end of the epoch on. It must not change weights, nor call
    `fit`, `evaluate` or `predict` of the model, which all ranks make together.

    Args:
        callback: The callback.

    Raises:
        TypeError: If `callback` is none of Keras.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> said = keras.callbacks.LambdaCallback(
        ...     on_epoch_end=lambda epoch, logs: print("epoch", epoch)
        ... )
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[RankZero(said)])
        epoch 0
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        super().__init__()
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(
                "callback must be a callback of Keras. "
                f"Received: callback={callback!r}. Give an instance, such as "
                "RankZero(keras.callbacks.CSVLogger('log.csv'))."
            )
        self.callback = callback
        for name in _HOOKS:
            # Keras calls what is not its own; hooks of batches cost time.
            if _is_overridden(callback, name):
                setattr(self, name, self._on_chief(name))

    def set_params(self, params: dict[str, Any]) -> None:
        """Tell the callback of the training."""
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        """Give the chief's callback the model: some open files at that."""
        super().set_model(model)
        if self._is_chief:
            self.callback.set_model(model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and let its decisions hold on all ranks."""
        if self._is_chief:
            self.callback.on_epoch_end(epoch, logs)
        if not has_strategy(self.model):
            self._agree()

    @property
    def _is_chief(self) -> bool:
        """Whether this is rank 0."""
        return is_chief_of(self.model)

    def _agree(self) -> None:
        """Give all ranks the decisions of the chief, which no strategy does here."""
        variables = learning_rate_variables(self.model.optimizer)
        own = [self.model.stop_training, [float(v.numpy()) for v in variables]]
        everyone = collective_of(self.model).exchange("decisions of RankZero", own)
        self.model.stop_training, rates = everyone[0]
        for variable, rate in zip(variables, rates, strict=True):
            variable.assign(rate)

    def _on_chief(self, name: str) -> Any:
        """Return a hook that calls that of the callback on the chief."""

        def hook(*args: Any, **kwargs: Any) -> None:
            if self._is_chief:
                getattr(self.callback, name)(*args, **kwargs)

        return hook


def _is_overridden(callback: keras.callbacks.Callback, name: str) -> bool:
    """Say whether a callback has a hook of its own."""
    function = getattr(getattr(callback, name), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, name)
