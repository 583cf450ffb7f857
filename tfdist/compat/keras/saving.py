"""Saving models: written by the chief only, and atomically."""

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
    """Save models atomically in the block, also without a strategy of tfdist."""
    token = _ATOMICALLY.set(True)
    try:
        yield
    finally:
        _ATOMICALLY.reset(token)


def strays_of(path: Path) -> list[Path]:
    """Return the temporary files of processes that ended while they wrote `path`.

    The name may contain fields of a format string.
    """
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
        # Sharded files, and files elsewhere than on this host, are left to Keras.
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
    """Let `write` write a temporary file, and rename it once it is complete on disk.

    Return the result of `write`.
    """
    # Keras determines the format by the ending, so it must stay.
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        result = write(str(beside))
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return result
