"""The compilers and programs that build Horovod, and the target environment."""

import importlib.util
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tfdist.horovod_build.installed import COULD_NOT_START, BuildError

_OLDEST = (3, 13)
_FIRST_UNFIT = (4,)
# The binary in PyPI's package, without its Python wrapper.
_IN_PACKAGE = Path("cmake/data/bin/cmake")


@dataclass(frozen=True)
class CMake:
    """The CMake for the build; `path` is None if PyPI provides it."""

    path: Path | None
    description: str


def find_cmake(env: Mapping[str, str]) -> CMake:
    """Find a suitable CMake, or decide to fetch one from PyPI."""
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
    """Return why a CMake cannot build Horovod, or None if it can."""
    if version is None:
        return "does not run"
    numbers = tuple(int(number) for number in version.split("."))
    if numbers < _OLDEST:
        return f"is {version}: Horovod needs 3.13 or newer"
    if numbers >= _FIRST_UNFIT:
        return f"is {version}: Horovod needs one below 4"
    return None


def brought_cmake(tools: Path) -> Path:
    """Return the path of the CMake that pip installed."""
    return tools / _IN_PACKAGE


def write_front(cmake: Path, path: Path) -> Path:
    """Write a script that calls CMake without debugging symbols."""
    # Symbols take a third of the build time, and 56 of the library's 58 MB.
    program = shlex.quote(str(cmake))
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --build ] && exec {program} "$@"\n'
        f'exec {program} "$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG"\n'
    )
    path.chmod(0o755)
    return path


def _version_of(program: str) -> str | None:
    """Return the version of a CMake, or None if it does not run."""
    try:
        told = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"cmake version (\d+(?:\.\d+)+)", told)
    return found and found[1]


# TensorFlow's headers are C++17.
_TRIAL = "#include <optional>\nint main() { return std::optional<int>().has_value(); }"
_CXX_NAMES = ("c++", "g++", "clang++")
_CC_NAMES = ("cc", "gcc", "clang")
_MPI_NAMES = ("mpicxx", "mpic++", "mpiCC")
_WITHOUT_ROOT = (
    "Without root: load a module of the cluster, or install conda-forge's "
    "package cxx-compiler, and set CXX and CC."
)


@dataclass(frozen=True)
class Toolchain:
    """The compilers, CMake and MPI that build Horovod; `mpi` may be None."""

    cxx: str
    cc: str
    compiler: str
    cmake: CMake
    mpi: str | None


def find_toolchain(env: Mapping[str, str]) -> Toolchain:
    """Find the programs that build Horovod, and try the compiler."""
    _check_horovod_variables(env)
    cxx = _find_compiler(env, "C++", "CXX", _CXX_NAMES)
    cc = _find_compiler(env, "C", "CC", _CC_NAMES)
    compiler = _try_compiler(cxx, env)
    if which("make", path=env.get("PATH")) is None:
        raise BuildError(
            "make must be installed: it runs the compiler. Received: no make on PATH "
            f"({env.get('PATH')}). {how_to_install('make')}",
            COULD_NOT_START,
        )
    return Toolchain(cxx, cc, compiler, find_cmake(env), _find_mpi(env))


def _check_horovod_variables(env: Mapping[str, str]) -> None:
    """Refuse variables that would fail only minutes later, or be ignored."""
    if env.get("HOROVOD_WITHOUT_TENSORFLOW") == "1":
        raise BuildError(
            "tfdist needs Horovod's part for TensorFlow. Received: "
            "HOROVOD_WITHOUT_TENSORFLOW=1. Unset it.",
            COULD_NOT_START,
        )
    for name, value in env.items():
        is_folder = re.fullmatch(r"HOROVOD_\w+_(HOME|INCLUDE|LIB)", name)
        if is_folder and not Path(value).is_dir():
            raise BuildError(
                f"{name} must be a folder. Received: {name}={value}, which is none. "
                "Correct it or unset it.",
                COULD_NOT_START,
            )


def _find_compiler(
    env: Mapping[str, str], language: str, variable: str, names: Sequence[str]
) -> str:
    """Find a compiler by CMake's rules."""
    path = env.get("PATH")
    named = env.get(variable)
    if named:
        if which(shlex.split(named)[0], path=path) is None:
            raise BuildError(
                f"{variable} must name a {language} compiler. Received: "
                f"{variable}={named}, which is not on PATH. Correct it or unset it.",
                COULD_NOT_START,
            )
        return named
    for name in names:
        program = which(name, path=path)
        if program is not None:
            return program
    raise BuildError(
        f"A {language} compiler must be installed. Received: none of "
        f"{', '.join(names)} on PATH ({path}). "
        f"{how_to_install(f'{language.lower()} compiler')} {_WITHOUT_ROOT}",
        COULD_NOT_START,
    )


def _try_compiler(cxx: str, env: Mapping[str, str]) -> str:
    """Compile a line of C++17; return the compiler's name."""
    command = shlex.split(cxx)
    told = subprocess.run(
        [*command, "--version"], env=env, capture_output=True, text=True, check=False
    )
    name = told.stdout.partition("\n")[0].strip() or cxx
    done = subprocess.run(
        [*command, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"],
        env=env,
        input=_TRIAL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.partition("\n")[0].strip() or "no reason given"
        raise BuildError(
            "The C++ compiler must know C++17, in which TensorFlow's headers are "
            f"written. Received: {name} ({cxx}), which says: {reason}. "
            f"{how_to_install('c++ compiler')} {_WITHOUT_ROOT}",
            COULD_NOT_START,
        )
    return name


def _find_mpi(env: Mapping[str, str]) -> str | None:
    """Find MPI's compiler, or return None to build without MPI."""
    if env.get("HOROVOD_WITHOUT_MPI") == "1":
        return None
    for name in _MPI_NAMES:
        program = which(name, path=env.get("PATH"))
        if program is not None:
            return program
    if env.get("HOROVOD_WITH_MPI") == "1" and "MPI_HOME" not in env:
        raise BuildError(
            "HOROVOD_WITH_MPI=1 needs MPI with its compiler. Received: no mpicxx on "
            f"PATH ({env.get('PATH')}). {how_to_install('mpi')} "
            "On a cluster: module load openmpi. Without the variable Gloo alone is "
            "built in, which needs nothing.",
            COULD_NOT_START,
        )
    return None


_MARK = "EXTERNALLY-MANAGED"


def check_target(env: Mapping[str, str]) -> None:
    """Check that pip can install here, before minutes of compilation."""
    if importlib.util.find_spec("pip") is None:
        raise BuildError(
            "pip must be installed: it builds Horovod and installs it. Received: "
            f"{sys.executable}, without pip. Run: {sys.executable} -m ensurepip, or, "
            "with uv: uv pip install pip",
            COULD_NOT_START,
        )
    managed = Path(sysconfig.get_path("stdlib"), _MARK)
    in_virtual_environment = sys.prefix != sys.base_prefix
    if (
        managed.exists()
        and not in_virtual_environment
        and "PIP_BREAK_SYSTEM_PACKAGES" not in env
    ):
        raise BuildError(
            "Horovod must go to an environment that pip may change. Received: "
            f"{sys.executable}, which the system manages. "
            "Use a virtual environment: python -m venv .venv",
            COULD_NOT_START,
        )


# The packages of Debian and Ubuntu, and of Fedora.
_PACKAGES = {
    "c compiler": ("gcc", "gcc"),
    "c++ compiler": ("g++", "gcc-c++"),
    "make": ("make", "make"),
    "mpi": ("libopenmpi-dev openmpi-bin", "openmpi-devel, then: module load mpi"),
}


def how_to_install(what: str) -> str:
    """Return the install commands for Debian, Ubuntu and Fedora."""
    debian, fedora = _PACKAGES[what]
    return f"Debian and Ubuntu: apt-get install {debian}; Fedora: dnf install {fedora}."
