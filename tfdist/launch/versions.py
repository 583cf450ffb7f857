"""Which versions of what a job is made of are installed on a host."""

import importlib.metadata
import platform

from tfdist import __version__

# Under which names TensorFlow is published.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly")


def installed_versions() -> dict[str, str]:
    """Return the versions that must be the same on every host of a job.

    Nothing is imported for it: TensorFlow alone would take seconds.

    Returns:
        The versions of Python, tfdist, TensorFlow and Keras, "none" for what is not
        installed.

    Example:
        >>> [*installed_versions()]
        ['Python', 'tfdist', 'TensorFlow', 'Keras']
    """
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "tfdist": __version__,
        "TensorFlow": _version_of(*_TENSORFLOW),
        "Keras": _version_of("keras"),
    }


def _version_of(*names: str) -> str:
    """Return the version of the first of these distributions that is there."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"
