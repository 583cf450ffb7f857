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


class BuildError(RuntimeError):
    """A failure to build Horovod or to run it."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# Distributions that provide TensorFlow.
_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-cpu-aws",
    "tensorflow-rocm",
    "tf-nightly",
    "tf-nightly-cpu",
)


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow."""

    version: str
    folder: Path

    @property
    def include(self) -> Path:
        """The folder of its C++ headers."""
        return self.folder / "include"


def find_tensorflow() -> TensorFlow:
    """Find the installed TensorFlow, or raise BuildError."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("tensorflow")
    version = _version()
    if spec is None or not spec.submodule_search_locations or version is None:
        raise BuildError(
            "TensorFlow must be installed before Horovod, which is built for it. "
            "Received: an environment without it. Run: pip install tensorflow",
            COULD_NOT_START,
        )
    tensorflow = TensorFlow(version, Path(spec.submodule_search_locations[0]))
    if not tensorflow.include.is_dir():
        raise BuildError(
            "TensorFlow must be installed with its C++ headers. Received: TensorFlow "
            f"{version}, without {tensorflow.include}. "
            "Install the package of PyPI: pip install --force-reinstall tensorflow",
            COULD_NOT_START,
        )
    return tensorflow


def same_version(one: str, other: str) -> bool:
    """Return whether two versions are equal, as written by TensorFlow or pip."""
    return _normalized(one) == _normalized(other)


def _version() -> str | None:
    """Return the version of the installed TensorFlow, or None."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _normalized(version: str) -> str:
    """Return a version in pip's spelling."""
    return version.replace("-dev", ".dev").replace("-", "")


# The frameworks of `horovodrun --check-build`, and their libraries.
_LIBRARIES = {
    "TensorFlow": "tensorflow/mpi_lib",
    "PyTorch": "torch/mpi_lib_v2",
    "MXNet": "mxnet/mpi_lib",
}
# Class names that a library contains only if it was built with that part.
_NAMES_IN = {
    "gloo": b"GlooController",
    "mpi": b"MPIController",
    "nccl": b"NCCLAllreduce",
}


@dataclass(frozen=True)
class Installed:
    """An installed Horovod."""

    version: str
    folder: Path
    built_for: str | None
    frameworks: tuple[str, ...]


def find_installed() -> Installed | None:
    """Find the installed Horovod, or return None."""
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
    """Return the TensorFlow version that a Horovod was built for, or None."""
    try:
        noted = json.loads((folder / "metadata.json").read_text())
    except (OSError, ValueError):
        return None
    version = noted.get("tensorflow")
    return version if isinstance(version, str) else None


def frameworks_of(folder: Path) -> tuple[str, ...]:
    """Return the frameworks whose library exists."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return tuple(
        name
        for name, library in _LIBRARIES.items()
        if (folder / f"{library}{suffix}").is_file()
    )


def parts_in(folder: Path) -> tuple[str, ...] | None:
    """Return the parts built into Horovod's library, without loading it, or None."""
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
