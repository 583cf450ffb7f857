"""The TensorFlow and the Horovod of this environment, found without importing them."""

import importlib
import importlib.util
import json
import mmap
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

COULD_NOT_START = 2
# Distributions that provide TensorFlow.
_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-cpu-aws",
    "tensorflow-rocm",
    "tf-nightly",
    "tf-nightly-cpu",
)
# Horovod's parts, and class names that only a library with that part contains.
_NAMES_IN = {
    "Gloo": b"GlooController",
    "MPI": b"MPIController",
    "NCCL": b"NCCLAllreduce",
}


class BuildError(RuntimeError):
    """A failure to build Horovod or to run it."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow, and the folder of its C++ headers."""

    version: str
    include: Path


@dataclass(frozen=True)
class Installed:
    """An installed Horovod, and the TensorFlow version that it was built for."""

    version: str
    folder: Path
    built_for: str | None


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow, or None."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def find_tensorflow() -> TensorFlow:
    """Find the installed TensorFlow, or raise BuildError."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("tensorflow")
    version = tensorflow_version()
    if spec is None or not spec.submodule_search_locations or version is None:
        raise BuildError(
            "TensorFlow must be installed before Horovod, which is built for it. "
            "Received: an environment without it. Run: pip install tensorflow",
            COULD_NOT_START,
        )
    include = Path(spec.submodule_search_locations[0]) / "include"
    if not include.is_dir():
        raise BuildError(
            "TensorFlow must be installed with its C++ headers. Received: TensorFlow "
            f"{version}, without {include}. "
            "Install the package of PyPI: pip install --force-reinstall tensorflow",
            COULD_NOT_START,
        )
    return TensorFlow(version, include)


def find_installed() -> Installed | None:
    """Find the installed Horovod, or return None."""
    importlib.invalidate_caches()
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file("horovod")))
    try:
        built_for = json.loads((folder / "metadata.json").read_text())["tensorflow"]
    except (OSError, ValueError, KeyError):
        built_for = None
    return Installed(distribution.version, folder, built_for)


def parts_in(folder: Path) -> tuple[str, ...] | None:
    """Return the parts of Horovod's library for TensorFlow, or None without one."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    try:
        with (
            open(folder / f"tensorflow/mpi_lib{suffix}", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return tuple(
                part for part, name in _NAMES_IN.items() if content.find(name) >= 0
            )
    except (OSError, ValueError):  # An empty file cannot be mapped.
        return None
