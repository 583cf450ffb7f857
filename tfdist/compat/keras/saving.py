"""Atomic saving of models, by the chief only."""

import inspect
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tfdist.compat.keras.hooks import any_hooks_of_model
from tfdist.compat.patching import within

_ATOMICALLY = ContextVar("atomically", default=False)


def saved_atomically() -> AbstractContextManager[None]:
    """Save models atomically in the block, even without a tfdist strategy."""
    return within(_ATOMICALLY, True)


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
    if hooks is None and not _ATOMICALLY.get():
        return original(model, filepath, *args, **kwargs)
    if hooks is not None and hooks.rank > 0:
        return None
    # Keras itself writes sharded files, and files on remote storage.
    is_file = isinstance(filepath, str | os.PathLike) and "://" not in str(filepath)
    bound = inspect.signature(original).bind(model, filepath, *args, **kwargs)
    given = bound.arguments
    is_whole = given.get("zipped", True) and not given.get("max_shard_size")
    if not (is_file and is_whole):
        return original(model, filepath, *args, **kwargs)
    return write_atomically(
        Path(filepath), lambda path: original(model, path, *args, **kwargs)
    )


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
