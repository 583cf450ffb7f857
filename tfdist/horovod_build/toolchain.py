"""The compilers and programs that build Horovod, found and tried."""

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tfdist.horovod_build.cmake import CMake, find_cmake
from tfdist.horovod_build.errors import COULD_NOT_START, BuildError
from tfdist.horovod_build.packages import how_to_install

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
    """What will build Horovod.

    Args:
        cxx: The C++ compiler, as it is written in CXX.
        cc: The C compiler, as it is written in CC.
        compiler: What the C++ compiler says of itself.
        cmake: The CMake, or that one has to be brought.
        mpi: MPI's compiler; None if there is none, or MPI is not wanted.
    """

    cxx: str
    cc: str
    compiler: str
    cmake: CMake
    mpi: str | None


def find_toolchain(env: Mapping[str, str]) -> Toolchain:
    """Find what builds Horovod, and try it.

    Args:
        env: The environment of this process: PATH, CXX, CC and HOROVOD_*.

    Returns:
        What was found.

    Raises:
        BuildError: If something is missing or unfit.
    """
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
    """Refuse what could only fail minutes later, or be ignored."""
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
    """Find a compiler where CMake would."""
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
    """Compile a line of C++17; return what the compiler says of itself."""
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
    """Find MPI, which Horovod builds in where it is there."""
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
