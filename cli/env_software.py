"""What is installed, for `tfdist env`; nothing of it is imported."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import tfdist
from tfdist.cluster.hosts.resources import Facts
from tfdist.horovod_build.installed import find_installed, parts_in

_PACKAGES = (
    "tensorflow",
    "keras",
    "numpy",
    "horovod",
    "tensorflow-datasets",
    "absl-py",
)
# Shown if they are there.
_OTHER_PACKAGES = ("tensorflow-cpu", "tf-nightly", "tf-keras")
_NOT_INSTALLED = "not installed"
_ROOT = Path("/")


def version_facts() -> Facts:
    """Return the versions of tfdist, Python, and what tfdist stands on.

    Example:
        >>> version_facts()["tfdist"] == tfdist.__version__
        True
    """
    facts: Facts = {"tfdist": tfdist.__version__, "Python": platform.python_version()}
    facts |= {package: _version(package) for package in _PACKAGES}
    others = {package: _version(package) for package in _OTHER_PACKAGES}
    return facts | {
        package: version
        for package, version in others.items()
        if version != _NOT_INSTALLED
    }


def platform_facts(root: Path = _ROOT) -> Facts:
    """Return the system, and where Python and tfdist are.

    Args:
        root: Where `etc` is. Default "/".

    Example:
        >>> platform_facts()["python"] == sys.executable
        True
    """
    system = platform.uname()
    return {
        "system": f"{system.system} {system.release} {system.machine}",
        "distribution": _distribution(root / "etc/os-release"),
        "c_library": _c_library(),
        "python": sys.executable,
        "tfdist_is_in": str(Path(tfdist.__file__).parent),
    }


def keras_facts(env: Mapping[str, str], home: Path) -> Facts:
    """Return the backend that Keras would take, and what says so.

    Args:
        env: The environment, by variable.
        home: The home of the user.

    Example:
        >>> keras_facts({"KERAS_BACKEND": "jax"}, Path("/"))["backend"]
        'jax'
    """
    # As Keras finds it: a home that nobody may write to has none.
    folder = (home if os.access(home, os.W_OK) else Path("/tmp")) / ".keras"
    if "KERAS_HOME" in env:
        folder = Path(os.path.expanduser(env["KERAS_HOME"]))
    file = folder / "keras.json"
    backend, source = "tensorflow", "Keras's default"
    try:
        written = json.loads(file.read_text()).get("backend")
        if written is not None:
            backend, source = str(written), str(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError) as error:
        source = f"Keras's default, as {file} cannot be read: {error}"
    if env.get("KERAS_BACKEND"):
        backend, source = env["KERAS_BACKEND"], "KERAS_BACKEND"
    return {"backend": backend, "set_by": source}


def horovod_facts() -> Facts:
    """Return what the installed Horovod was built with, as far as its files tell.

    Example:
        >>> "built_in" in horovod_facts()
        True
    """
    horovod = find_installed()
    if horovod is None:
        return {"folder": _NOT_INSTALLED, "built_in": _NOT_INSTALLED}
    parts = parts_in(horovod.folder)
    return {
        "folder": str(horovod.folder),
        "built_for": f"TensorFlow {horovod.built_for or 'unknown'}",
        "frameworks": list(horovod.frameworks) or "none",
        "built_in": None if parts is None else list(parts) or "none",
    }


def _version(package: str) -> str | None:
    """Return the version of a package; None if its metadata holds none."""
    try:
        version: str | None = metadata.version(package)
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED
    # What a removal has left behind has no version.
    except (KeyError, TypeError):
        return None
    return version


def _distribution(file: Path) -> str | None:
    """Return the name of the Linux distribution."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    names = dict(line.split("=", 1) for line in lines if "=" in line)
    return names.get("PRETTY_NAME", "").strip("\"'") or None


def _c_library() -> str | None:
    """Return the C library with its version, which decides what wheels fit."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        return None
