"""The TensorFlow of this environment, found without importing it."""

import importlib
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tfdist.horovod_build.errors import COULD_NOT_START, BuildError

# The same package is published under several names.
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
    """An installed TensorFlow.

    Args:
        version: Its version.
        folder: Where it is installed.
    """

    version: str
    folder: Path

    @property
    def include(self) -> Path:
        """The folder of its C++ headers."""
        return self.folder / "include"


def find_tensorflow() -> TensorFlow:
    """Find TensorFlow.

    Returns:
        What is installed.

    Raises:
        BuildError: If there is none, or one without headers.

    Example:
        >>> find_tensorflow().include.name
        'include'
    """
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
    """Tell whether two versions are one, which TensorFlow and pip write differently.

    Args:
        one: A version.
        other: A version.

    Returns:
        Whether they mean the same release.

    Example:
        >>> same_version("2.22.0-rc1", "2.22.0rc1"), same_version("2.21.0", "2.21.1")
        (True, False)
    """
    return _normalized(one) == _normalized(other)


def _version() -> str | None:
    """Return the version that the package says of itself."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _normalized(version: str) -> str:
    """Write a version as pip does."""
    return version.replace("-dev", ".dev").replace("-", "")
