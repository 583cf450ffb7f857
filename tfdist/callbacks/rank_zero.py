"""RankZero: any callback, on the chief alone."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.callbacks.peers import collective_of, is_chief_of, is_on_its_own
from tfdist.compat.keras.callbacks import Wraps
from tfdist.compat.keras.learning_rates import learning_rate_variables, optimizers_of

# At all but the first all ranks agree; without a strategy nobody else does it. At the
# first, a BroadcastVariables behind this one has yet to send another rank's rate.
_OWN_HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
_HOOKS = tuple(
    name
    for name in dir(keras.callbacks.Callback)
    if name.startswith("on_") and name not in _OWN_HOOKS
)


class RankZero(keras.callbacks.Callback, Wraps):  # type: ignore[misc]
    """Lets a callback run on the chief only, such as one that writes files or sends.

    Give it on every rank. What it decides holds for all of them: when to stop, and the
    learning rate; with `tfdist.horovod`, what it decides in a batch does so from the
    end of the epoch on. It must not change weights, nor call `fit`, `evaluate` or
    `predict` of the model, which all ranks make together.

    Args:
        callback: The callback; none of tfdist, which need all ranks.

    Raises:
        TypeError: If `callback` is none of Keras.
        ValueError: If it needs all ranks.

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
        _check(callback)
        self.callback = callback
        # What was decided in a batch, without a strategy.
        self._wish: list[Any] | None = None
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
        if is_chief_of(model):
            self.callback.set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forget an earlier `fit` that was interrupted, and call the callback."""
        self._wish = None
        self._on_chief("on_train_begin")(logs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and let its decisions hold on all ranks."""
        self._together(self.callback.on_epoch_begin, epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and let its decisions hold on all ranks."""
        self._together(self.callback.on_epoch_end, epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Call the callback, and let its decisions hold on all ranks."""
        self._together(self.callback.on_train_end, logs)

    def _together(self, hook: Callable[..., Any], *args: Any) -> None:
        """Call a hook on the chief, at a point that all ranks come to."""
        if self._wish is not None:
            self._decide(self._wish)
            self._wish = None
        if is_chief_of(self.model):
            hook(*args)
        if is_on_its_own(self.model):
            own = self._decisions()
            everyone = collective_of(self.model).exchange("decisions of RankZero", own)
            self._decide(everyone[0])

    def _on_chief(self, name: str) -> Any:
        """Return a hook that calls that of the callback on the chief."""

        def hook(*args: Any, **kwargs: Any) -> None:
            if not is_chief_of(self.model):
                return
            before = self._decisions()
            getattr(self.callback, name)(*args, **kwargs)
            after = self._decisions()
            if after != before and is_on_its_own(self.model):
                # The others cannot know of it yet.
                self._wish = after
                self._decide(before)

        return hook

    def _decisions(self) -> list[Any]:
        """Return what a callback may decide: to stop, and the learning rates."""
        return [
            bool(self.model.stop_training),
            [float(v.numpy()) for v in self._variables()],
        ]

    def _decide(self, decisions: list[Any]) -> None:
        """Let something be decided."""
        self.model.stop_training, rates = decisions
        for variable, rate in zip(self._variables(), rates, strict=True):
            variable.assign(rate)

    def _variables(self) -> list[Any]:
        """Return the variables of the learning rates."""
        return [
            variable
            for optimizer in optimizers_of(self.model)
            for variable in learning_rate_variables(optimizer)
        ]


def _check(callback: Any) -> None:
    """Refuse what cannot run on one rank."""
    if not isinstance(callback, keras.callbacks.Callback):
        raise TypeError(
            "callback must be a callback of Keras. "
            f"Received: callback={callback!r}. Give an instance, such as "
            "RankZero(keras.callbacks.CSVLogger('log.csv'))."
        )
    changes_weights = getattr(callback, "restore_best_weights", False)
    if type(callback).__module__.startswith("tfdist.") or changes_weights:
        what = "with restore_best_weights=True" if changes_weights else "of tfdist"
        raise ValueError(
            "RankZero is for callbacks that one rank can have by itself. Received: "
            f"{type(callback).__name__} {what}, which needs all ranks. Give it to fit "
            "as it is, on every rank."
        )


def _is_overridden(callback: keras.callbacks.Callback, name: str) -> bool:
    """Say whether a callback has a hook of its own."""
    function = getattr(getattr(callback, name), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, name)
