"""Callbacks: joint decisions of ranks, output by the chief only, and saved states."""

import sys
import time
from collections.abc import Callable
from numbers import Real
from typing import Any

import keras
from keras.callbacks import (
    BackupAndRestore,
    LambdaCallback,
    LearningRateScheduler,
    ProgbarLogger,
    TerminateOnNaN,
)
from keras.src.utils.python_utils import is_default

from tfdist.cluster.launcher import Launcher
from tfdist.compat.keras.hooks import KerasHooks, hooks_of_model
from tfdist.compat.keras.optimizer import log_scale
from tfdist.compat.keras.positions import Resumes, current_position
from tfdist.compat.owned_variables import DividedTable, owners_of
from tfdist.compat.status_line import status_lines
from tfdist.compat.user_warnings import warn_user

# Methods of callbacks, by the event at which they may decide something.
_BATCH_METHODS = {
    "batch_begin": ("on_batch_begin", "on_train_batch_begin"),
    "batch_end": ("on_batch_end", "on_train_batch_end"),
}
# Callbacks that write files or send data. ModelCheckpoint is not among them: only the
# chief saves models anyway, and every rank must track the best value.
_WRITERS = (
    "BackupAndRestore",
    "CSVLogger",
    "OrbaxCheckpoint",
    "RemoteMonitor",
    "TensorBoard",
)
# The state of callbacks, as attribute names.
_KEPT = {
    "EarlyStopping": ("best", "best_epoch", "wait", "stopped_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
# Writers about which a message was already printed.
_REPORTED: set[str] = set()


class StartsFromRank:
    """Base of a callback that sets the rank whose variables start a `fit`."""

    root_rank: int


class SetsRate:
    """Base of a callback that multiplies the learning rate."""


class Wraps:
    """Base of a callback that wraps another one."""

    callback: Any


def root_rank_of(callbacks: Any) -> int:
    """Return the rank whose variables start a `fit` with these callbacks."""
    ranks = {
        callback.root_rank
        for callback in _list_of(callbacks)
        if isinstance(callback, StartsFromRank)
    }
    if len(ranks) > 1:
        raise ValueError(
            "A fit can start with the variables of one rank only. Received: callbacks "
            f"with the root_rank {sorted(ranks)}. Give one BroadcastVariables."
        )
    return next(iter(ranks), 0)


def resuming_of(callbacks: Any) -> Resumes | None:
    """Return the callback that resumes an interrupted `fit`, if any."""
    found = [one for one in _list_of(callbacks) if isinstance(one, Resumes)]
    if len(found) > 1:
        raise ValueError(
            "A fit can resume from one place only. Received: "
            f"{len(found)} of tfdist's BackupAndRestore. Give one."
        )
    return next(iter(found), None)


def innermost(callback: Any) -> Any:
    """Return the callback inside all wrappers."""
    return innermost(callback.callback) if isinstance(callback, Wraps) else callback


def state_of_callback(callback: Any) -> dict[str, Any] | None:
    """Return the state of a Keras callback or subclass; None if it has none."""
    names = [
        name
        for kind, kept in _KEPT.items()
        # Older versions of Keras lack some of them.
        if isinstance(callback, getattr(keras.callbacks, kind, ()))
        for name in kept
    ]
    state = {n: getattr(callback, n) for n in names if hasattr(callback, n)}
    return state or None


def set_state_of_callback(callback: Any, state: dict[str, Any]) -> None:
    """Restore a state from `state_of_callback`."""
    for name, value in state.items():
        setattr(callback, name, value)


class ChiefProgbarLogger(ProgbarLogger):
    """Progress bar that labels the chief's own values until the end of an epoch."""

    def _update_progbar(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Label the logs of a batch as rank 0's."""
        logs = {f"{name} (rank 0)": value for name, value in (logs or {}).items()}
        super()._update_progbar(batch, logs)

    def _finalize_progbar(self, logs: dict[str, Any] | None) -> None:
        """Show the logs of all ranks instead."""
        self._maybe_init_progbar()
        self.progbar._values.clear()
        self.progbar._values_order.clear()
        super()._finalize_progbar(logs)


class EpochNotes(keras.callbacks.Callback):
    """Callback that lets a rank record its epochs; it follows those that add logs."""

    # A custom loop may leave out the begin of an epoch.
    _began = 0.0

    def __init__(self, hooks: KerasHooks) -> None:
        super().__init__()
        self._hooks = hooks

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Take the time."""
        self._began = time.time()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Hand the numbers among the logs on."""
        pairs = (logs or {}).items()
        numbers = {name: float(v) for name, v in pairs if isinstance(v, Real)}
        self._hooks.note_epoch(epoch + 1, self._began, numbers)


def init_for_rank(
    original: Any,
    self: Any,
    callbacks: Any = None,
    add_history: bool = False,
    add_progbar: bool = False,
    model: Any = None,
    **params: Any,
) -> None:
    """Create a list of callbacks; the progress bar and files are left to the chief."""
    hooks = hooks_of_model(model)
    if hooks is not None and hooks.has_peers:
        if owners_of(model.distribute_strategy) is not None:
            _refuse_savers_of_chief(_list_of(callbacks))
            _refuse_readers_of_tables(_list_of(callbacks), model)
        callbacks = _of_this_rank(_list_of(callbacks), hooks)
        has_bar = any(isinstance(one, ProgbarLogger) for one in callbacks)
        if add_progbar and hooks.rank == 0 and not has_bar:
            callbacks = [*callbacks, ChiefProgbarLogger()]
        if hooks.rank == 0:
            callbacks = [*callbacks, *status_lines()]
        if Launcher().flight_folder is not None:
            callbacks = [*callbacks, EpochNotes(hooks)]
        add_progbar = False
    original(self, callbacks, add_history, add_progbar, model, **params)
    resuming = resuming_of(self.callbacks)
    if resuming is not None:
        # It runs last, to save the state that the others have left.
        resuming.others = [one for one in self.callbacks if one is not resuming]
        self.callbacks = [*resuming.others, resuming]


def _of_this_rank(callbacks: list[Any], hooks: KerasHooks) -> list[Any]:
    """Return a rank's callbacks; only the chief has those that write."""
    # Other ranks receive what the chief restores. Subclasses stay on every rank,
    # because they may do anything.
    kinds = {getattr(keras.callbacks, name, None) for name in _WRITERS}
    writers = [one for one in callbacks if type(one) in kinds]
    if hooks.rank > 0:
        return [one for one in callbacks if one not in writers]
    _warn_of_lost_rates(callbacks)
    new = sorted({type(one).__name__ for one in writers} - _REPORTED)
    if new:
        _REPORTED.update(new)
        print(f"tfdist: only the chief has {', '.join(new)}.", file=sys.stderr)
    return callbacks


def _refuse_savers_of_chief(callbacks: list[Any]) -> None:
    """Raise `ValueError` for Keras's callbacks that save on the chief alone."""
    names = "BackupAndRestore", "OrbaxCheckpoint"
    kinds = {getattr(keras.callbacks, name, None) for name in names}
    found = sorted({type(one).__name__ for one in callbacks if type(one) in kinds})
    if found:
        raise ValueError(
            "With shard_optimizer or shard_embeddings, all ranks must save a model "
            "together. "
            f"Received: keras.callbacks.{found[0]}, which only the chief runs. Use "
            "tfdist.callbacks.BackupAndRestore."
        )


def _refuse_readers_of_tables(callbacks: list[Any], model: Any) -> None:
    """Raise `ValueError` for callbacks that would read tables of which ranks have rows.

    Else they do so after an epoch or more.
    """
    tables = [v for v in model.variables if isinstance(v, DividedTable)]
    readers = [
        type(one).__name__
        for one in callbacks
        if isinstance(one, keras.callbacks.SwapEMAWeights)
        or getattr(one, "restore_best_weights", False)
        or getattr(one, "histogram_freq", 0)
    ]
    if tables and readers:
        raise ValueError(
            "With shard_embeddings, no rank has all weights for a callback to read. "
            f"Received: {readers[0]}, which reads them, and {tables[0].path} in parts. "
            "Leave out histogram_freq or the callback; to keep the best weights, use "
            "tfdist.callbacks.ModelCheckpoint(path, save_best_only=True), and load its "
            "file on every rank."
        )


def _warn_of_lost_rates(callbacks: list[Any]) -> None:
    """Warn if Keras's callback overwrites the learning rate that another has set."""
    found = [innermost(one) for one in callbacks]
    rates = sorted({type(one).__name__ for one in found if isinstance(one, SetsRate)})
    if rates and any(isinstance(one, LearningRateScheduler) for one in found):
        warn_user(
            "LearningRateScheduler sets the learning rate in each epoch, and undoes "
            f"{', '.join(rates)}. Received: both. Let its function return the final "
            f"rate and leave {', '.join(rates)} out, or use "
            "tfdist.callbacks.LearningRateSchedule, whose factors are multiplied."
        )


def _list_of(callbacks: Any) -> list[Any]:
    """Return the callbacks given to `fit` as a list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    given = keras.tree.flatten(callbacks)
    return [callback for callback in given if callback is not None]


def begin_training(original: Any, self: Any, logs: Any = None) -> None:
    """Start the agreement of ranks, and synchronize what callbacks restore."""
    _check_position(self.callbacks)
    hooks = _hooks_of(self)
    if hooks is not None:
        watched = [e for e, names in _BATCH_METHODS.items() if _watches(self, *names)]
        hooks.training_begins(self.model, watched)
    original(self, logs)
    restores = _watches(self, "on_train_begin", restoring=True)
    if hooks is not None:
        begins = self.model._initial_epoch
        begins = hooks.restored(self.model, begins, restores=restores)
        self.model._initial_epoch = begins


def _check_position(callbacks: list[Any]) -> None:
    """Raise if no position in the data is tracked for BackupAndRestore."""
    if resuming_of(callbacks) is not None and current_position() is None:
        raise RuntimeError(
            "BackupAndRestore must be created before model.fit is called. Received: a "
            "call of fit without a strategy that creates the callback itself, or a "
            "training without fit. Assign the callback to a variable first: backup = "
            "BackupAndRestore(...), then model.fit(..., callbacks=[backup])."
        )


def then_agree(event: str) -> Callable[..., None]:
    """Return a replacement that lets ranks agree on the decisions of callbacks."""

    def method(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _agree(self, event)

    return method


def end_epoch(original: Any, self: Any, epoch: int, logs: Any = None) -> None:
    """End an epoch: log the loss scale, agree, and save the training."""
    optimizer = getattr(getattr(self, "model", None), "optimizer", None)
    if logs is not None:
        log_scale(optimizer, logs)
    original(self, epoch, logs)
    _agree(self, "epoch_end")
    resuming = resuming_of(self.callbacks)
    if resuming is not None:
        resuming.epoch_ended(epoch)


def _agree(callback_list: Any, event: str) -> None:
    """Let ranks agree after an event of callbacks."""
    hooks = _hooks_of(callback_list)
    if hooks is not None:
        hooks.callbacks_called(callback_list.model, event)


def _hooks_of(callback_list: Any) -> KerasHooks | None:
    """Return the hooks of the model of a callback list, if any."""
    # A list without a model lacks the attribute.
    return hooks_of_model(getattr(callback_list, "model", None))


def _watches(callback_list: Any, *names: str, restoring: bool = False) -> bool:
    """Return whether a callback that may affect training overrides one of `names`."""
    deciding = BackupAndRestore if restoring else TerminateOnNaN
    return any(
        (isinstance(callback, LambdaCallback | deciding) or _is_of_user(callback))
        and any(not is_default(getattr(callback, name)) for name in names)
        for callback in map(innermost, callback_list.callbacks)
    )


def _is_of_user(callback: Any) -> bool:
    """Return whether a callback may decide something that is not known."""
    # Trackers' callbacks decide nothing.
    known = ("keras.src.callbacks.", "mlflow.", "tfdist.", "wandb.")
    return not type(callback).__module__.startswith(known)
