"""RankZero: a callback that runs on the chief only."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.callbacks.ranks import collective_of, is_chief_of, is_on_its_own
from tfdist.compat.keras.callbacks import Wraps
from tfdist.compat.keras.learning_rates import learning_rates_of, set_learning_rates
from tfdist.compat.keras.saving import chief_alone

# Hooks in which ranks without a strategy exchange decisions, except in the first, in
# which a later BroadcastVariables may still send another learning rate.
_OWN_HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
_HOOKS = tuple(
    name
    for name in dir(keras.callbacks.Callback)
    if name.startswith("on_") and name not in _OWN_HOOKS
)


class RankZero(keras.callbacks.Callback, Wraps):
    """Callback that runs another one on the chief only, for example to write files.

    Give it to `fit` on every rank. All ranks follow the wrapped callback's decisions:
    to stop, and the learning rate. With `tfdist.horovod`, a decision made in a batch
    takes effect at the end of the epoch. The wrapped callback must not change weights,
    nor call the model's `fit`, `evaluate` or `predict`, which need all ranks.

    Args:
        callback: A Keras callback or your own, but not one of tfdist, which need all
            ranks.

    Raises:
        TypeError: If `callback` is not a Keras callback.
        ValueError: If `callback` needs all ranks.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> report = keras.callbacks.LambdaCallback(
        ...     on_epoch_end=lambda epoch, logs: print("epoch", epoch)
        ... )
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[RankZero(report)])
        epoch 0
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        super().__init__()
        _check(callback)
        self.callback = callback
        # A decision made in a batch without a strategy.
        self._pending: list[Any] | None = None
        for name in _HOOKS:
            # Keras skips hooks that are not overridden, which saves time.
            if _is_overridden(callback, name):
                setattr(self, name, self._on_chief(name))

    def set_params(self, params: dict[str, Any]) -> None:
        """Pass the training parameters to the callback."""
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        """Pass the model to the chief's callback, which may open files here."""
        super().set_model(model)
        if is_chief_of(model):
            self.callback.set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Discard a decision of an interrupted `fit`, and call the callback."""
        self._pending = None
        self._on_chief("on_train_begin")(logs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and apply its decisions on all ranks."""
        self._together(self.callback.on_epoch_begin, epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and apply its decisions on all ranks."""
        self._together(self.callback.on_epoch_end, epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and apply its decisions on all ranks."""
        self._together(self.callback.on_train_end, logs)

    def _together(self, hook: Callable[..., Any], *args: Any) -> None:
        """Call a hook on the chief, at a point that all ranks reach."""
        if self._pending is not None:
            self._decide(self._pending)
            self._pending = None
        if is_chief_of(self.model):
            with chief_alone():
                hook(*args)
        if is_on_its_own(self.model):
            collective = collective_of(self.model)
            by_rank = collective.exchange("decisions of RankZero", self._decisions())
            self._decide(by_rank[0])

    def _on_chief(self, name: str) -> Any:
        """Return a hook that calls the callback's hook on the chief."""

        def hook(*args: Any, **kwargs: Any) -> None:
            if not is_chief_of(self.model):
                return
            before = self._decisions()
            with chief_alone():
                getattr(self.callback, name)(*args, **kwargs)
            after = self._decisions()
            if after != before and is_on_its_own(self.model):
                # The other ranks do not know it yet.
                self._pending = after
                self._decide(before)

        return hook

    def _decisions(self) -> list[Any]:
        """Return what a callback may decide: to stop, and the learning rates."""
        return [bool(self.model.stop_training), learning_rates_of(self.model)]

    def _decide(self, decisions: list[Any]) -> None:
        """Apply decisions."""
        self.model.stop_training, rates = decisions
        set_learning_rates(self.model, rates)


def _check(callback: Any) -> None:
    """Refuse a callback that cannot run on one rank."""
    if not isinstance(callback, keras.callbacks.Callback):
        raise TypeError(
            "callback must be a Keras callback. "
            f"Received: callback={callback!r}. Give an instance, such as "
            "RankZero(keras.callbacks.CSVLogger('log.csv'))."
        )
    changes_weights = getattr(callback, "restore_best_weights", False)
    if type(callback).__module__.startswith("tfdist.") or changes_weights:
        kind = "with restore_best_weights=True" if changes_weights else "of tfdist"
        raise ValueError(
            "RankZero is for callbacks that can run on one rank. Received: "
            f"{type(callback).__name__} {kind}, which needs all ranks. Give it to fit "
            "directly, on every rank."
        )


def _is_overridden(callback: keras.callbacks.Callback, name: str) -> bool:
    """Return whether a callback overrides a hook."""
    function = getattr(getattr(callback, name), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, name)
