"""Whether a CMake can build Horovod."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tfdist.horovod_build.errors import COULD_NOT_START, BuildError

_OLDEST = (3, 13)
_FIRST_UNFIT = (4,)
# The program in the package of PyPI, which its script would start by way of Python.
_IN_PACKAGE = Path("cmake/data/bin/cmake")


@dataclass(frozen=True)
class CMake:
    """The CMake that will build Horovod.

    Args:
        path: The program; None if one has to be brought from PyPI.
        description: What to tell about it.
    """

    path: Path | None
    description: str


def find_cmake(env: Mapping[str, str]) -> CMake:
    """Find a CMake that is fit, or say why one must be brought.

    Args:
        env: The environment of this process. Horovod's own HOROVOD_CMAKE names the
            program, otherwise it is looked for on PATH.

    Returns:
        What to use.

    Raises:
        BuildError: If HOROVOD_CMAKE names one that is not fit.
    """
    named = env.get("HOROVOD_CMAKE")
    program = which(named or "cmake", path=env.get("PATH"))
    version = None if program is None else _version_of(program)
    reason = why_unfit(version)
    if program is not None and version is not None and reason is None:
        return CMake(Path(program), f"{version}, {program}")
    found = "no cmake on PATH" if program is None else f"{program} {reason}"
    if named is not None:
        raise BuildError(
            "HOROVOD_CMAKE must name a CMake from 3.13 on and below 4. Received: "
            f"HOROVOD_CMAKE={named} ({found}). "
            "Leave it out, and one is brought from PyPI for this build.",
            COULD_NOT_START,
        )
    return CMake(None, f"from PyPI, for this build only ({found})")


def why_unfit(version: str | None) -> str | None:
    """Say why a CMake cannot build Horovod.

    Args:
        version: Its version, None if it does not tell one.

    Returns:
        The reason; None if it can.

    Example:
        >>> why_unfit("3.25.1"), why_unfit("4.1.2")
        (None, 'is 4.1.2: Horovod needs one below 4')
    """
    if version is None:
        return "does not run"
    numbers = tuple(int(number) for number in version.split("."))
    if numbers < _OLDEST:
        return f"is {version}: Horovod needs 3.13 or newer"
    if numbers >= _FIRST_UNFIT:
        return f"is {version}: Horovod needs one below 4"
    return None


def brought_cmake(tools: Path) -> Path:
    """Return the program among what pip has brought.

    Args:
        tools: The folder to which pip has installed the package `cmake`.

    Returns:
        The program.
    """
    return tools / _IN_PACKAGE


def write_front(cmake: Path, path: Path) -> Path:
    """Write a script that calls CMake and leaves debugging symbols out.

    Horovod wants them always. They take a third of the time of a build, and make the
    library 58 MB large instead of 2 MB.

    Args:
        cmake: The program.
        path: The script.

    Returns:
        The script, to be named in HOROVOD_CMAKE.
    """
    program = shlex.quote(str(cmake))
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --build ] && exec {program} "$@"\n'
        f'exec {program} "$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG"\n'
    )
    path.chmod(0o755)
    return path


def _version_of(program: str) -> str | None:
    """Ask a CMake for its version; a script may be there whose package is not."""
    try:
        told = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"cmake version (\d+(?:\.\d+)+)", told)
    return found and found[1]
