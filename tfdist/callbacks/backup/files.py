"""Files of saved states: atomic, checksummed, and written in a thread."""

import fcntl
import io
import os
import re
import socket
import sys
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from tfdist.cluster.launcher import Launcher
from tfdist.compat.keras.saving import strays_of, write_atomically

Arrays = Mapping[str, np.ndarray]

_NAME = re.compile(r"state-(\d{8})\.npys")
_CHECKSUM_BYTES = 4


class StateFiles:
    """The state files of one training run, of which the newest `kept` are kept."""

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept
        self._lock_path = folder / "lock"
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """Keep other jobs out of the folder, until `unlock` or the process ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while self._lock is None:
            # Appending, so that the name of another owner is still there.
            file = self._lock_path.open("a+")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with file:
                    file.seek(0)
                    raise self._in_use(file.read().strip()) from None
            except OSError:  # This file system has no locks.
                return
            if _is_file(file, self._lock_path):
                self._lock = file
        # A full disk must not keep a job from resuming.
        with suppress(OSError):
            self._lock.truncate(0)
            self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._lock.flush()

    def _in_use(self, owner: str) -> OSError:
        """Return the error of a folder that another job has locked."""
        return BlockingIOError(
            "Another job that runs saves its states in backup_dir. Received: "
            f"{self._folder}, in use by {owner or 'another process'}. End that job, or "
            "give each job a folder of its own."
        )

    def unlock(self) -> None:
        """Let other jobs into the folder."""
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def tidy(self) -> None:
        """Remove partial files that killed processes have left."""
        for path in strays_of(self._folder / "state-{number}.npys"):
            path.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Return whether there is no state."""
        return not self._paths()

    def newest(self) -> bytes | None:
        """Return the newest undamaged state, or None without any."""
        paths = self._paths()
        for number, path in enumerate(paths):
            content = path.read_bytes()
            if is_whole(content):
                # Damaged files are removed only if an older one is whole.
                for other in paths[:number]:
                    print(
                        f"tfdist: {other} is damaged: its checksum does not match its "
                        f"content. {path.name}, the state before it, is used.",
                        file=sys.stderr,
                    )
                    other.unlink(missing_ok=True)
                return content
        if paths:
            raise OSError(
                "backup_dir has no state that could be read. Received: "
                f"{self._folder} with {', '.join(path.name for path in paths[::-1])}, "
                "whose checksums do not match. Check the disk, and remove the folder "
                "to train from the beginning."
            )
        return None

    def write(self, content: bytes) -> None:
        """Write a state, and remove the oldest ones beyond the limit."""
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [_number(path) for path in self._paths()]
        path = self._folder / f"state-{max(numbers, default=0) + 1:08d}.npys"
        write_atomically(path, lambda beside: Path(beside).write_bytes(content))
        _sync_folder(self._folder)
        for other in self._paths()[self._kept :]:
            other.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all states, and the folder if it is then empty."""
        self.tidy()
        for path in self._paths():
            path.unlink(missing_ok=True)
        self.unlock()
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _paths(self) -> list[Path]:
        """Return the files, newest first."""
        found = [p for p in self._folder.glob("state-*") if _NAME.fullmatch(p.name)]
        return sorted(found, key=_number, reverse=True)


class StateWriter:
    """A thread that writes states, one at a time."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tfdist-state")
        self._last: Future[None] | None = None

    def write(self, pack: Callable[[], bytes], then: Callable[[], None]) -> None:
        """Start writing the result of `pack` once the previous state is on disk.

        `then` is called when this one is.
        """
        self.wait()

        def write() -> None:
            self._files.write(pack())
            then()

        self._last = self._thread.submit(write)

    def wait(self) -> None:
        """Wait for the last state; raise OSError if its write failed."""
        last, self._last = self._last, None
        try:
            if last is not None:
                last.result()
        except OSError as error:
            # All ranks raise the error of the chief, which is rank 0.
            Launcher().note_culprit(0)
            kept = "The state before it is kept"
            if self._files.is_empty():
                kept = "No earlier state exists"
            raise OSError(
                "BackupAndRestore on rank 0 could not write the state of the training. "
                f"Received: {error}. {kept}. Free some space, or choose another "
                "backup_dir, and start again."
            ) from error

    def close(self) -> None:
        """Finish writing, and stop the thread."""
        self._thread.shutdown()


def to_bytes(arrays: Arrays) -> bytes:
    """Serialize named arrays with `numpy.save`, followed by a CRC-32."""
    file = io.BytesIO()
    for array in (np.array([*arrays], dtype=np.str_), *arrays.values()):
        np.save(file, array, allow_pickle=False)
    content = file.getbuffer()
    return b"".join((content, _checksum(content)))


def from_bytes(content: bytes) -> dict[str, np.ndarray]:
    """Return arrays that `to_bytes` serialized."""
    file = io.BytesIO(content)
    names = np.load(file, allow_pickle=False)
    return {str(name): np.load(file, allow_pickle=False) for name in names}


def is_whole(content: bytes) -> bool:
    """Return whether the checksum at the end of a state matches its content."""
    body = memoryview(content)[:-_CHECKSUM_BYTES]
    return bool(body) and content[-_CHECKSUM_BYTES:] == _checksum(body)


def _is_file(file: IO[str], path: Path) -> bool:
    """Return whether a path still names an open file, which may have been removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _number(path: Path) -> int:
    """Return the number of a state."""
    return int(path.stem.removeprefix("state-"))


def _checksum(content: memoryview | bytes) -> bytes:
    """Return the CRC-32 of the content."""
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")


def _sync_folder(folder: Path) -> None:
    """Flush a folder's file names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
