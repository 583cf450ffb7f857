"""Saving of models: atomic, by the chief only, and large weights by parts."""

import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving import saving_lib
from tensorflow.python.checkpoint import checkpoint_management

from tfdist.cluster import facts
from tfdist.compat.keras import sharded
from tfdist.compat.keras.hooks import KerasHooks, any_hooks_of_model, hooks_of
from tfdist.compat.keras.learning_rates import variables_of
from tfdist.compat.keras.sharded import goes_by_parts, read_parts
from tfdist.compat.owned_variables import owner_of, owners_of
from tfdist.compat.patching import holding, within
from tfdist.sharding.assignment import DIVIDED

_ATOMICALLY = ContextVar("atomically", default=False)
# Whether the chief writes a file, in the course of which it may write others.
_WRITING = ContextVar("writing", default=False)
# Whether only the chief runs the code, so that no other rank can lend.
_CHIEF_ALONE = ContextVar("chief alone", default=False)
# Whether a model with large weights on servers is loaded; None: no model is.
_BY_PARTS: ContextVar[bool | None] = ContextVar("by_parts", default=None)

# Keras 3.8 reads and writes datasets in a class of their own.
ENTRY = "H5Entry" if hasattr(saving_lib, "H5Entry") else "H5IOStore"


class MissingFileError(FileNotFoundError, ValueError):
    """Absence of a file to load; Keras raises one or the other, by the format."""


class CheckpointOfChief(keras.callbacks.ModelCheckpoint):
    """ModelCheckpoint that saves on the chief, atomically; the other ranks wait."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files."""
        return True

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        """Save on the chief; the others raise the error of a file that fails."""
        hooks = any_hooks_of_model(self.model)
        save = functools.partial(super()._save_model, epoch, batch, logs)
        write = save if self.is_chief else lambda: None
        with within(_ATOMICALLY, True):
            _write_once(hooks, self.filepath, write, self.model)


def strays_of(path: Path) -> list[Path]:
    """Return leftover temporary files of `path`, whose name may hold format fields."""
    any_name = re.sub(r"\\\{.*?\\\}", ".*", re.escape(path.name))
    stray = re.compile(rf"\.\d+\.{any_name}")
    folder = path.parent
    found = folder.iterdir() if folder.is_dir() else ()
    return [beside for beside in found if stray.fullmatch(beside.name)]


def save_once(
    original: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Save like Keras, atomically and on the chief only."""
    hooks = any_hooks_of_model(model)
    is_path = isinstance(filepath, str | os.PathLike)
    # Each rank has memory of its own to write to.
    if not is_path or (hooks is None and not _ATOMICALLY.get()):
        return original(model, filepath, *args, **kwargs)
    # Keras itself writes sharded files, and files on remote storage.
    bound = inspect.signature(original).bind(model, filepath, *args, **kwargs)
    given = bound.arguments
    is_whole = given.get("zipped", True) and not given.get("max_shard_size")

    def write() -> Any:
        if "://" in str(filepath) or not is_whole:
            return original(model, filepath, *args, **kwargs)
        return write_atomically(
            Path(filepath), lambda path: original(model, path, *args, **kwargs)
        )

    return _write_once(hooks, filepath, write, model)


def ask_once(
    original: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Save like Keras, which may ask whether to overwrite a file, on the chief only."""
    is_path = isinstance(filepath, str | os.PathLike)
    hooks = any_hooks_of_model(model) if is_path else None
    save = functools.partial(original, model, filepath, *args, **kwargs)
    return _write_once(hooks, filepath, save, model)


def export_once(
    original: Any, self: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Export like Keras, on the chief only."""
    hooks = any_hooks_of_model(self)
    return _write_once(
        hooks, filepath, lambda: original(self, filepath, *args, **kwargs)
    )


def write_checkpoint_once(
    original: Any, self: Any, file_prefix: Any, options: Any = None
) -> Any:
    """Write a checkpoint of TensorFlow on the chief; the others only track it."""
    hooks, prefix = _hooks_of_variables(self), os.fspath(file_prefix)
    _check_none_is_owned(self)
    write = functools.partial(original, self, file_prefix, options)
    written = _write_once(hooks, prefix, write)
    if hooks is not None and hooks.rank > 0:
        # Programs delete the folder in which a worker has written.
        tf.io.gfile.makedirs(os.path.dirname(prefix))
        callbacks = getattr(options, "experimental_write_callbacks", None) or ()
        with ExitStack() as stack:
            for name in ("update_checkpoint_state_internal", "_delete_file_if_exists"):
                nothing = holding(checkpoint_management, name, lambda *_, **__: None)
                stack.enter_context(nothing)
            for callback in callbacks:
                callback(*(prefix,) * len(inspect.signature(callback).parameters))
    return written or prefix


def save_model_once(
    original: Any, obj: Any, export_dir: Any, *args: Any, **kwargs: Any
) -> Any:
    """Write a SavedModel on the chief only."""
    hooks = _hooks_of_variables(obj)
    _check_none_is_owned(obj)
    write = functools.partial(original, obj, export_dir, *args, **kwargs)
    written = _write_once(hooks, export_dir, write)
    if hooks is not None and hooks.rank > 0:
        tf.io.gfile.makedirs(export_dir)
    return written or ([], {})


def chief_alone() -> AbstractContextManager[None]:
    """Mark a block that only the chief runs."""
    return within(_CHIEF_ALONE, True)


def lending(model: Any, call: Callable[[], Any] | None) -> Any:
    """Make a call on the chief, to which other ranks lend what they own meanwhile.

    `call` is None on other ranks.
    """
    owners = owners_of(getattr(model, "_distribute_strategy", None))
    owned = [] if owners is None else _owned_by_ranks(model)
    if not owned:
        return call and call()
    if call is None:
        return owners.lend(owned)
    if _CHIEF_ALONE.get():
        raise RuntimeError(
            "With shard_optimizer or shard_embeddings, all ranks must save a model "
            "together. "
            f"Received: the model {model.name!r}, saved by a callback that only the "
            "chief runs. Give fit tfdist.callbacks.ModelCheckpoint or "
            "BackupAndRestore, without RankZero."
        )
    with owners.reading(owned):
        return call()


def _owned_by_ranks(model: Any) -> list[Any]:
    """Return a model's variables that only their owners keep."""
    return [v for v in variables_of(model) if owner_of(v) is not None]


def _write_once(
    hooks: KerasHooks | None, path: Any, write: Callable[[], Any], model: Any = None
) -> Any:
    """Write on the chief, while the other ranks wait for it and return None."""
    if hooks is None or _WRITING.get():
        return write()
    # Programs may number the files of ranks.
    name = re.sub(r"\d", "", Path(path).name)
    if hooks.rank == 0:
        try:
            with within(_WRITING, True):
                result = lending(model, write)
        except Exception as error:
            hooks.has_written(name, error)
            raise
        hooks.has_written(name)
        return result
    lending(model, None)
    if not hooks.wait_for_file(name):
        warnings.warn(
            f"Only the chief writes files, and it has not written this one. Received: "
            f"{os.fspath(path)!r}, saved by rank {hooks.rank} alone. Save on every "
            "rank, or on the chief.",
            stacklevel=2,
        )
    return None


def load_existing(original: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Load like Keras; if there is no file, say which ranks must save it."""
    _check_exists(filepath)
    return original(filepath, *args, **kwargs)


def load_existing_weights(
    original: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Load like Keras; if there is no file, say which ranks must save it."""
    _check_exists(filepath)
    return original(model, filepath, *args, **kwargs)


def _check_exists(path: Any) -> None:
    """Raise an error with the remedies if a file of several ranks is missing."""
    is_local = isinstance(path, str | os.PathLike) and "://" not in str(path)
    if facts.size() > 1 and is_local and not os.path.exists(path):
        raise MissingFileError(
            f"There is no such file. Received: {os.fspath(path)!r}, in a job of "
            f"{facts.size()} processes. Check the path. If this program saves the "
            "file, call model.save on every rank, not after `if tfdist.is_chief()`: "
            "only the chief writes, and the others wait for it. Ranks on several hosts "
            "need a folder that all of them share."
        )


def _check_none_is_owned(root: Any) -> None:
    """Raise `RuntimeError` for an object with an optimizer that is sharded."""
    found = tf.train.TrackableView(root).descendants()
    owned = [v.path for v in found if owner_of(v) is not None and hasattr(v, "path")]
    if owned:
        raise RuntimeError(
            "Checkpoints of TensorFlow and SavedModels cannot hold what ranks share "
            f"by shard_optimizer or shard_embeddings. Received: {owned[0]}. Use "
            "model.save; without the optimizer also model.export or a checkpoint, and "
            "with divided tables what keras.models.load_model returns elsewhere."
        )


def _hooks_of_variables(root: Any) -> KerasHooks | None:
    """Return the hooks of the strategy of an object's variables, if any."""
    for found in tf.train.TrackableView(root).descendants():
        variable = getattr(found, "_value", found)
        hooks = hooks_of(getattr(variable, "_distribute_strategy", None))
        if hooks is not None:
            return hooks
    # Such as an iterator, of which each rank has its own.
    return None


def write_atomically(path: Path, write: Callable[[str], Any]) -> Any:
    """Write to a temporary file, then rename it; return the result of `write`."""
    # Keras derives the format from the suffix, so the temporary name keeps it.
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        result = write(str(beside))
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return result


def is_memory_for_whole(original: Any, model: Any) -> bool:
    """Return whether files may pass through memory, which large weights should not."""
    return not (_has_large(model) or _owned_by_ranks(model)) and bool(original(model))


def write_by_parts(original: Any, self: Any, key: str, value: Any) -> None:
    """Write a value to a file like Keras, but a large one without copies."""
    is_in_parts = isinstance(value, keras.Variable) and _is_in_parts(value)
    if isinstance(value, keras.Variable) and not is_in_parts:
        # Keras copies the copy that a variable gives. NumPy itself cannot convert a
        # scalar that has copies on devices.
        value = np.asarray(value.numpy())
    is_large = isinstance(value, np.ndarray) and value.nbytes > sharded.PART_BYTES
    if not (is_in_parts or is_large) or value.dtype == "bfloat16":
        # Keras marks bfloat16, which files lack.
        original(self, key, value.numpy() if is_in_parts else value)
        return
    original(self, key, np.zeros(0))
    group = _group_of(self)
    del group[key]
    dataset = group.create_dataset(key, tuple(value.shape), value.dtype)
    parts: Any = [(..., value)]
    if owner_of(value) is not None:
        parts = value.owners.read_parts(value)
    elif is_in_parts:
        parts = read_parts(value._value)
    for part, rows in parts:
        dataset[part] = rows


def save_own_by_parts(original: Any, self: Any, store: Any) -> None:
    """Write the state of an optimizer like Keras, large variables by parts."""
    if not _has_large(self):
        original(self, store)
        return
    for number, variable in enumerate(self.variables):
        store[str(number)] = variable


def read_by_parts(original: Any, self: Any, *key: str) -> Any:
    """Read an array from a file like Keras, a large one when it is assigned."""
    if not _BY_PARTS.get():
        return original(self, *key)
    # Newer versions refuse links to other files.
    get = getattr(saving_lib, "safe_get_h5_dataset", lambda group, name: group[name])
    dataset = get(_group_of(self), *key)
    is_large = dataset.nbytes > sharded.PART_BYTES and "dtype" not in dataset.attrs
    return dataset if is_large else original(self, *key)


def load_by_parts(original: Any, saveable: Any, *args: Any, **kwargs: Any) -> Any:
    """Load the state of an object like Keras, large weights by parts."""
    by_parts = _BY_PARTS.get()
    with within(_BY_PARTS, _has_large(saveable) if by_parts is None else by_parts):
        return original(saveable, *args, **kwargs)


def _has_large(saveable: Any) -> bool:
    """Return whether an object has variables that are read and written by parts."""
    return any(map(_is_in_parts, getattr(saveable, "variables", ())))


def _is_in_parts(variable: Any) -> bool:
    """Return whether other processes have a variable, or rows of it that are many."""
    return owner_of(variable) == DIVIDED or goes_by_parts(variable)


def _group_of(store: Any) -> Any:
    """Return the group in the file that Keras reads or writes."""
    return store.group if ENTRY == "H5Entry" else store._h5_entry_group
