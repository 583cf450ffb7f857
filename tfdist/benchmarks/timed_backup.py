"""A BackupAndRestore that notes what its states take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import keras

from tfdist.callbacks import BackupAndRestore
from tfdist.callbacks.backup.files import StateFiles, StateWriter
from tfdist.compat.keras.positions import Position


class Saves:
    """The states that were saved, one after the other."""

    def __init__(self) -> None:
        self._begun: list[float] = []
        self._over: list[float] = []
        self._on_disk: list[float] = []
        self._bytes: list[int] = []

    def timed(self, save: Callable[..., object]) -> Callable[..., None]:
        """Return what saves a state, timed: it holds the training up.

        Args:
            save: What saves.
        """

        def timed(*arguments: Any, **options: Any) -> None:
            self._begun.append(perf_counter())
            save(*arguments, **options)
            self._over.append(perf_counter())

        return timed

    def written(self, size_bytes: int) -> None:
        """Note that the next state is on disk.

        Args:
            size_bytes: Its size in bytes.
        """
        self._on_disk.append(perf_counter())
        self._bytes.append(size_bytes)

    def clear(self) -> None:
        """Forget those that were saved; all of them are on disk."""
        for notes in (self._begun, self._over, self._on_disk, self._bytes):
            notes.clear()

    def report(self) -> dict[str, list[Any]]:
        """Return of each state how long it held the training up, and went to disk.

        The latter, and the bytes, stand there for states that this process wrote beside
        the training.
        """
        return {
            "hold_seconds": _differences(self._over, self._begun),
            "disk_seconds": _differences(self._on_disk, self._begun),
            "bytes": [*self._bytes],
        }


class TimedBackup(BackupAndRestore):
    """Notes what its states take.

    Args:
        backup_dir: The folder.
        save_freq: "epoch", or after how many batches.
        saves: Where to note it.
    """

    def __init__(self, backup_dir: str, save_freq: str | int, saves: Saves) -> None:
        super().__init__(backup_dir, save_freq)
        self._saves = saves

    @contextmanager
    def resuming(self, model: keras.Model) -> Iterator[Position]:
        """Note when states are on disk, too."""
        with super().resuming(model) as position:
            self._files = _NotedFiles(self.backup_dir, 2, self._saves)
            self._writer = StateWriter(self._files)
            yield position

    def settle(self) -> None:
        """Wait until the last state is on disk."""
        self._writer.wait()

    def _save(self, epoch: int, step: int, logs: dict[str, Any] | None) -> None:
        """Keep the state between two steps."""
        self._saves.timed(super()._save)(epoch, step, logs)


class _NotedFiles(StateFiles):
    """Notes what it has written."""

    def __init__(self, folder: Path, kept: int, saves: Saves) -> None:
        super().__init__(folder, kept)
        self._saves = saves

    def write(self, content: bytes) -> None:
        """Write a state."""
        super().write(content)
        self._saves.written(len(content))


def _differences(ends: list[float], begins: list[float]) -> list[float]:
    """Return how long each of those took that have ended."""
    return [end - begin for end, begin in zip(ends, begins, strict=False)]
