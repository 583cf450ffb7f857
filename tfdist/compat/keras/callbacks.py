"""Callbacks: their decisions hold on every rank, and the chief alone prints."""

from collections.abc import Callable
from typing import Any

import keras
from keras.src.callbacks.backup_and_restore import BackupAndRestore
from keras.src.callbacks.callback_list import CallbackList
from keras.src.callbacks.lambda_callback import LambdaCallback
from keras.src.callbacks.progbar_logger import ProgbarLogger
from keras.src.callbacks.terminate_on_nan import TerminateOnNaN
from keras.src.utils.python_utils import is_default

from tfdist.compat.keras.hooks import KerasHooks, hooks_of_model
from tfdist.compat.keras.positions import Resumes, current_position
from tfdist.compat.keras.writers import of_this_rank

_BATCH_BEGINS = ("on_batch_begin", "on_train_batch_begin")
_BATCH_ENDS = ("on_batch_end", "on_train_batch_end")


def patch() -> None:
    """Put the agreement of ranks into Keras's list of callbacks."""
    CallbackList.__init__ = _printing_on_chief(CallbackList.__init__)
    CallbackList.on_train_begin = _beginning(CallbackList.on_train_begin)
    for name, agreement in (
        ("on_epoch_begin", "agree"),
        ("on_epoch_end", "agree"),
        ("on_train_batch_begin", "batch_begins"),
        ("on_train_batch_end", "batch_ended"),
    ):
        agreeing = _then(getattr(CallbackList, name), agreement)
        setattr(CallbackList, name, agreeing)
    CallbackList.on_epoch_end = _ending_epoch(CallbackList.on_epoch_end)


class StartsFromRank:
    """A callback that says with whose variables a `fit` starts.

    Args:
        root_rank: The rank.
    """

    root_rank: int


class Wraps:
    """A callback around another one, whose decisions count.

    Args:
        callback: The other one.
    """

    callback: Any


def root_rank_of(callbacks: Any) -> int:
    """Return with whose variables a `fit` starts.

    Args:
        callbacks: What `fit` was given as such.

    Raises:
        ValueError: If two of them name different ranks.
    """
    ranks = {
        callback.root_rank
        for callback in _list_of(callbacks)
        if isinstance(callback, StartsFromRank)
    }
    if len(ranks) > 1:
        raise ValueError(
            "A fit can start with the variables of one rank only. Received: callbacks "
            f"with the root_rank {sorted(ranks)}. Leave one BroadcastVariables."
        )
    return next(iter(ranks), 0)


def resuming_of(callbacks: Any) -> Resumes | None:
    """Return the callback that lets a `fit` begin where an earlier one was cut off.

    Args:
        callbacks: What `fit` was given as such.

    Raises:
        ValueError: If there are several.
    """
    found = [one for one in _list_of(callbacks) if isinstance(one, Resumes)]
    if len(found) > 1:
        raise ValueError(
            "A fit can begin in one place only. Received: "
            f"{len(found)} of tfdist's BackupAndRestore. Leave one."
        )
    return next(iter(found), None)


def innermost(callback: Any) -> Any:
    """Return the callback that decides, of one that others may be around.

    Args:
        callback: Any callback.
    """
    return innermost(callback.callback) if isinstance(callback, Wraps) else callback


class ChiefProgbarLogger(ProgbarLogger):  # type: ignore[misc]
    """A progress bar that names what is the chief's alone.

    While an epoch runs, nobody knows the values of all ranks; at its end they are
    printed under their own names.
    """

    def _update_progbar(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Show the logs of a batch as those of this rank."""
        logs = {f"{name} (rank 0)": value for name, value in (logs or {}).items()}
        super()._update_progbar(batch, logs)

    def _finalize_progbar(self, logs: dict[str, Any] | None) -> None:
        """Show the logs of all ranks in place of those."""
        self._maybe_init_progbar()
        self.progbar._values.clear()
        self.progbar._values_order.clear()
        super()._finalize_progbar(logs)


def _printing_on_chief(original: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that leaves the progress bar, and files, to the chief."""

    def init(
        self: Any,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        hooks = None if model is None else hooks_of_model(model)
        if hooks is not None and hooks.has_peers:
            callbacks = of_this_rank(_list_of(callbacks), hooks)
            has_bar = any(isinstance(one, ProgbarLogger) for one in callbacks)
            if add_progbar and hooks.rank == 0 and not has_bar:
                callbacks = [*callbacks, ChiefProgbarLogger()]
            add_progbar = False
        original(self, callbacks, add_history, add_progbar, model, **params)
        resuming = resuming_of(self.callbacks)
        if resuming is not None:
            # What it keeps is what all others have left.
            resuming.others = [one for one in self.callbacks if one is not resuming]
            self.callbacks = [*resuming.others, resuming]

    return init


def _list_of(callbacks: Any) -> list[Any]:
    """Return as a list what `fit` takes as callbacks."""
    if isinstance(callbacks, CallbackList):
        callbacks = callbacks.callbacks
    given = keras.tree.flatten(callbacks)
    return [callback for callback in given if callback is not None]


def _beginning(original: Callable[..., None]) -> Callable[..., None]:
    """Return a method that lets ranks agree from the start."""

    def on_train_begin(self: Any, logs: Any = None) -> None:
        _check_position(self.callbacks)
        hooks = _hooks_of(self)
        if hooks is not None:
            hooks.training_begins(
                self.model,
                watches_begin=_watches(self, *_BATCH_BEGINS),
                watches_end=_watches(self, *_BATCH_ENDS),
            )
        original(self, logs)
        restores = _watches(self, "on_train_begin", restoring=True)
        if hooks is not None and hooks.restored(self.model, restores=restores):
            self.model._initial_epoch = hooks.first_epoch(self.model._initial_epoch)

    return on_train_begin


def _check_position(callbacks: list[Any]) -> None:
    """Refuse a training that knows nothing of where it is to begin."""
    if resuming_of(callbacks) is not None and current_position() is None:
        raise RuntimeError(
            "BackupAndRestore must be there before fit is. Received: a training that "
            "is not a call of fit, or in whose call tfdist.callbacks was imported "
            "first. Import tfdist.callbacks at the top of the program, and call fit."
        )


def _then(original: Callable[..., None], agreement: str) -> Callable[..., None]:
    """Return a method after which ranks agree on what its callbacks decided."""

    def method(self: Any, number: int, logs: Any = None) -> None:
        original(self, number, logs)
        hooks = _hooks_of(self)
        decisions = None if hooks is None else hooks.decisions(self.model)
        if decisions is not None:
            getattr(decisions, agreement)()

    return method


def _ending_epoch(original: Callable[..., None]) -> Callable[..., None]:
    """Return a method that tells the callback that keeps the state of the training."""

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        original(self, epoch, logs)
        resuming = resuming_of(self.callbacks)
        if resuming is not None:
            resuming.epoch_ended(epoch)

    return on_epoch_end


def _hooks_of(callback_list: Any) -> KerasHooks | None:
    """Return the hooks of the processes whose callbacks these are, if any."""
    # A list that was given no model does not have the attribute.
    model = getattr(callback_list, "model", None)
    return None if model is None else hooks_of_model(model)


def _watches(callback_list: Any, *names: str, restoring: bool = False) -> bool:
    """Say whether a callback that may decide something overrides one of these."""
    deciding = BackupAndRestore if restoring else TerminateOnNaN
    return any(
        (isinstance(callback, LambdaCallback | deciding) or _is_of_user(callback))
        and any(not is_default(getattr(callback, name)) for name in names)
        for callback in map(innermost, callback_list.callbacks)
    )


def _is_of_user(callback: Any) -> bool:
    """Say whether nobody here knows what a callback does."""
    module = type(callback).__module__
    return not module.startswith(("keras.src.callbacks.", "tfdist."))
