"""The Horovod of this environment, found without importing it."""

import importlib
import json
import mmap
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# What `horovodrun --check-build` calls each, and where its library is.
_LIBRARIES = {
    "TensorFlow": "tensorflow/mpi_lib",
    "PyTorch": "torch/mpi_lib_v2",
    "MXNet": "mxnet/mpi_lib",
}
# Names of classes that are in a library only if it was built with that part.
_NAMES_IN = {
    "gloo": b"GlooController",
    "mpi": b"MPIController",
    "nccl": b"NCCLAllreduce",
}


@dataclass(frozen=True)
class Installed:
    """An installed Horovod.

    Args:
        version: Its version.
        folder: Where it is installed.
        built_for: The version of TensorFlow that it was built for; None if its part for
            TensorFlow was not built.
        frameworks: The frameworks whose part was built.
    """

    version: str
    folder: Path
    built_for: str | None
    frameworks: tuple[str, ...]


def find_installed() -> Installed | None:
    """Find Horovod.

    Returns:
        What is installed; None if nothing is.
    """
    importlib.invalidate_caches()
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file("horovod")))
    return Installed(
        distribution.version, folder, tensorflow_of(folder), frameworks_of(folder)
    )


def tensorflow_of(folder: Path) -> str | None:
    """Read which TensorFlow a Horovod was built for, as its build has noted.

    Args:
        folder: Where it is installed.

    Returns:
        The version; None if there is no note of one.
    """
    try:
        noted = json.loads((folder / "metadata.json").read_text())
    except (OSError, ValueError):
        return None
    version = noted.get("tensorflow")
    return version if isinstance(version, str) else None


def frameworks_of(folder: Path) -> tuple[str, ...]:
    """List the frameworks whose library is there.

    Args:
        folder: Where Horovod is installed.

    Returns:
        Their names.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return tuple(
        name
        for name, library in _LIBRARIES.items()
        if (folder / f"{library}{suffix}").is_file()
    )


def parts_in(folder: Path) -> tuple[str, ...] | None:
    """Tell from its library what is built into a Horovod, without loading it.

    Args:
        folder: Where Horovod is installed.

    Returns:
        "gloo", "mpi" and "nccl" as far as they are built in; None if there is no
        library for TensorFlow that can be read.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library = folder / f"{_LIBRARIES['TensorFlow']}{suffix}"
    try:
        with (
            open(library, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return tuple(
                part for part, name in _NAMES_IN.items() if content.find(name) >= 0
            )
    except (OSError, ValueError):  # An empty file cannot be mapped.
        return None
