"""The states of a training on disk: whole, checked, and the one before as well."""

import io
import os
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tfdist.compat.keras.saving import write_atomically

Arrays = Mapping[str, np.ndarray]

_NAME = re.compile(r"state-(\d{8})\.npys")
_CHECKSUM_BYTES = 4


class Damaged(ValueError):
    """What should be a state is none, or not whole."""


def to_bytes(arrays: Arrays) -> bytes:
    """Write arrays down.

    The names, as an array of strings, and then each array, stand there one after the
    other as `numpy.save` writes them; at the end the CRC-32 of all of it.

    Args:
        arrays: By name; of types that NumPy has itself.
    """
    file = io.BytesIO()
    for array in (np.array([*arrays], dtype=np.str_), *arrays.values()):
        np.save(file, array, allow_pickle=False)
    content = file.getbuffer()
    return b"".join((content, _checksum(content)))


def from_bytes(content: bytes) -> dict[str, np.ndarray]:
    """Read what `to_bytes` has written.

    Args:
        content: All of it.

    Raises:
        Damaged: If a bit of it has changed, or some are missing.
    """
    body = memoryview(content)[:-_CHECKSUM_BYTES]
    if not body or content[-_CHECKSUM_BYTES:] != _checksum(body):
        raise Damaged("its checksum does not fit its content")
    file = io.BytesIO(body)
    names = np.load(file, allow_pickle=False)
    return {str(name): np.load(file, allow_pickle=False) for name in names}


class StateFiles:
    """The files of one training in a folder.

    Args:
        folder: Where they are; made with the first of them.
        kept: How many of the newest are kept.
    """

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept

    def tidy(self) -> None:
        """Remove what a process has left that was ended while it wrote."""
        for path in self._folder.glob(".*"):
            if _NAME.fullmatch(re.sub(r"^\.\d+\.", "", path.name)):
                path.unlink(missing_ok=True)

    def newest(self) -> bytes | None:
        """Return the newest state that is whole, None if there is no state.

        One that is damaged is said on stderr, and removed if another one is whole.

        Raises:
            OSError: If there are states, and all of them are damaged.
        """
        damaged: dict[Path, str] = {}
        for path in self._paths():
            content = path.read_bytes()
            try:
                from_bytes(content)
            except Damaged as error:
                damaged[path] = str(error)
                continue
            for other, reason in damaged.items():
                print(
                    f"tfdist: {other} is damaged: {reason}. {path.name}, the state "
                    "before it, is used.",
                    file=sys.stderr,
                )
                other.unlink(missing_ok=True)
            return content
        if damaged:
            names = ", ".join(sorted(path.name for path in damaged))
            raise OSError(
                "backup_dir has no state that could be read. Received: "
                f"{self._folder} with {names}, whose checksums do not fit. Check the "
                "disk, and remove the folder to train from the beginning."
            )
        return None

    def write(self, content: bytes) -> None:
        """Write a state, and remove those that are too many.

        Args:
            content: As `to_bytes` returns it.

        Raises:
            OSError: If it cannot be written. The one before is still there.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [_number(path) for path in self._paths()]
        path = self._folder / f"state-{max(numbers, default=0) + 1:08d}.npys"
        write_atomically(path, lambda beside: Path(beside).write_bytes(content))
        _sync_folder(self._folder)
        for other in self._paths()[self._kept :]:
            other.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all states, and the folder if nothing else is in it."""
        self.tidy()
        for path in self._paths():
            path.unlink(missing_ok=True)
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _paths(self) -> list[Path]:
        """Return the files, the newest first."""
        found = [p for p in self._folder.glob("state-*") if _NAME.fullmatch(p.name)]
        return sorted(found, key=_number, reverse=True)


def _number(path: Path) -> int:
    """Return the number of a state."""
    return int(path.stem.removeprefix("state-"))


def _checksum(content: memoryview | bytes) -> bytes:
    """Return the CRC-32 of something."""
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")


def _sync_folder(folder: Path) -> None:
    """Let the names of files be on disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
