"""Atomic saving of models, by the chief only."""

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_lib

from tfdist.compat.keras.hooks import any_hooks_of_model

_save_model = saving_lib.save_model
_save_weights_only = saving_lib.save_weights_only
_save_model_to_hdf5 = legacy_h5_format.save_model_to_hdf5
_ATOMICALLY = ContextVar("atomically", default=False)


def patch() -> None:
    """Make Keras save models on the chief only."""
    saving_lib.save_model = _once(_save_model)
    saving_lib.save_weights_only = _once(_save_weights_only)
    legacy_h5_format.save_model_to_hdf5 = _once(_save_model_to_hdf5)


@contextmanager
def saved_atomically() -> Iterator[None]:
    """Save models atomically in the block, even without a tfdist strategy."""
    token = _ATOMICALLY.set(True)
    try:
        yield
    finally:
        _ATOMICALLY.reset(token)


def strays_of(path: Path) -> list[Path]:
    """Return leftover temporary files of `path`, whose name may hold format fields."""
    any_name = re.sub(r"\\\{.*?\\\}", ".*", re.escape(path.name))
    stray = re.compile(rf"\.\d+\.{any_name}")
    folder = path.parent
    found = folder.iterdir() if folder.is_dir() else ()
    return [beside for beside in found if stray.fullmatch(beside.name)]


def _once(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that saves on the chief only."""
    signature = inspect.signature(save)

    def save_once(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = any_hooks_of_model(model)
        if hooks is None and not _ATOMICALLY.get():
            return save(model, filepath, *args, **kwargs)
        if hooks is not None and hooks.rank > 0:
            return None
        # Keras itself writes sharded files, and files on remote storage.
        is_file = isinstance(filepath, str | os.PathLike) and "://" not in str(filepath)
        given = signature.bind(model, filepath, *args, **kwargs).arguments
        is_whole = given.get("zipped", True) and not given.get("max_shard_size")
        if not (is_file and is_whole):
            return save(model, filepath, *args, **kwargs)
        return write_atomically(
            Path(filepath), lambda path: save(model, path, *args, **kwargs)
        )

    return save_once


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
