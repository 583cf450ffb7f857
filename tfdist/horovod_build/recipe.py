"""How Horovod is built: which version, in what environment, by which commands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOROVOD_VERSION = "0.28.1"

# Each is left out where the environment holds its opposite.
_DEFAULTS = {
    "HOROVOD_WITH_TENSORFLOW": "HOROVOD_WITHOUT_TENSORFLOW",
    "HOROVOD_WITHOUT_PYTORCH": "HOROVOD_WITH_PYTORCH",
    "HOROVOD_WITHOUT_MXNET": "HOROVOD_WITH_MXNET",
    "HOROVOD_WITH_GLOO": "HOROVOD_WITHOUT_GLOO",
}

# Newer ones no longer install what `setup_requires` names, as Horovod's setup.py does;
# the packages after it are what that names.
_BUILD_TOOLS = (
    "setuptools>=77,<81",
    "wheel",
    "cloudpickle",
    "packaging",
    "psutil",
    "pyyaml",
)
# Horovod's copy of Gloo asks for policies that CMake 4 has dropped.
_CMAKE = "cmake>=3.13,<4"
# Python dropped distutils, which Horovod's runner imports; setuptools stands in for it.
_RUNNER_NEEDS = 'setuptools; python_version >= "3.12"'

# What a make hands to those that it starts; ours is not one of its own.
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")

# Options whose effect an installed Horovod can tell: the part that each is about, and
# whether it asks for it.
_OPTIONS = (
    ("HOROVOD_WITH_GLOO", "1", "gloo", True),
    ("HOROVOD_WITHOUT_GLOO", "1", "gloo", False),
    ("HOROVOD_WITH_MPI", "1", "mpi", True),
    ("HOROVOD_WITHOUT_MPI", "1", "mpi", False),
    ("HOROVOD_GPU_OPERATIONS", "NCCL", "nccl", True),
    ("HOROVOD_GPU_OPERATIONS", "MPI", "cuda", True),
    ("HOROVOD_GPU_ALLREDUCE", "NCCL", "nccl", True),
)


@dataclass(frozen=True)
class Ground:
    """What a build stands on.

    Args:
        cxx: The C++ compiler, as it is written in CXX.
        cc: The C compiler, as it is written in CC.
        cmake: The program.
        tools: The folder that holds setuptools and its company.
        include: Folders with headers, the first first.
        jobs: How many files are compiled at a time.
    """

    cxx: str
    cc: str
    cmake: Path
    tools: Path
    include: Sequence[Path]
    jobs: int


def build_environment(env: Mapping[str, str], ground: Ground) -> dict[str, str]:
    """Return the environment in which Horovod is built.

    What somebody has set stands: HOROVOD_* of any kind, and MAKEFLAGS.

    Args:
        env: The environment of this process.
        ground: What the build stands on.

    Returns:
        The variables.

    Example:
        >>> folder = Path("/tmp/tools")
        >>> ground = Ground("g++", "gcc", Path("/usr/bin/cmake"), folder, [folder], 2)
        >>> build_environment({"HOROVOD_WITH_MPI": "1"}, ground)["MAKEFLAGS"]
        '-j2'
    """
    defaults = {
        name: "1" for name, opposite in _DEFAULTS.items() if opposite not in env
    }
    inherited = {name: value for name, value in env.items() if name not in _OF_MAKE}
    return {
        **defaults,
        **inherited,
        "CC": ground.cc,
        # Horovod passes options of make to whatever CMake has chosen.
        "CMAKE_GENERATOR": "Unix Makefiles",
        "CPLUS_INCLUDE_PATH": _path(ground.include, env.get("CPLUS_INCLUDE_PATH")),
        "CXX": ground.cxx,
        "HOROVOD_CMAKE": str(ground.cmake),
        "MAKEFLAGS": _make_flags(env, ground.jobs),
        "PYTHONPATH": _path([ground.tools], env.get("PYTHONPATH")),
        # TensorFlow is imported on the way, and has much to say on stderr.
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


def tools_command(python: str, folder: Path, *, with_cmake: bool) -> list[str]:
    """Return the command that brings what Horovod's setup.py needs.

    It goes to a folder of its own: the environment of the user stays as it is, and
    newer versions that may be there do not come into it.

    Args:
        python: The interpreter.
        folder: Where the packages go.
        with_cmake: Whether CMake is among them.

    Returns:
        The command.
    """
    packages = [*_BUILD_TOOLS, *([_CMAKE] if with_cmake else [])]
    return [*_pip(python, "install"), "--target", str(folder), *packages]


def wheel_command(python: str, folder: Path) -> list[str]:
    """Return the command that compiles Horovod into a wheel.

    A wheel of an earlier build would fit by its name, whatever TensorFlow it was
    built for: neither pip's cache nor an index may provide one.

    Args:
        python: The interpreter that will use Horovod.
        folder: Where the wheel goes.

    Returns:
        The command.
    """
    return [
        *_pip(python, "wheel"),
        "--verbose",
        "--use-pep517",
        "--no-build-isolation",
        "--no-deps",
        "--no-cache-dir",
        "--no-binary=horovod",
        f"--wheel-dir={folder}",
        f"horovod=={HOROVOD_VERSION}",
    ]


def install_commands(python: str, wheel: Path) -> list[list[str]]:
    """Return the commands that install a wheel, in turn.

    Args:
        python: The interpreter that will use Horovod.
        wheel: The wheel.

    Returns:
        One that replaces whatever Horovod is there, and one that adds what it needs.
    """
    return [
        [*_pip(python, "install"), "--force-reinstall", "--no-deps", str(wheel)],
        [*_pip(python, "install"), str(wheel), _RUNNER_NEEDS],
    ]


def unfulfilled(env: Mapping[str, str], parts: Sequence[str]) -> str | None:
    """Say which option an installed Horovod does not fulfil.

    Args:
        env: The environment of this process, with Horovod's options.
        parts: What is built in, such as "gloo" and "mpi".

    Returns:
        A sentence; None if it fulfils all.

    Example:
        >>> unfulfilled({"HOROVOD_WITH_MPI": "1"}, ("gloo",))
        'HOROVOD_WITH_MPI=1 is set, and the installed Horovod was built without it.'
    """
    for name, value, part, wanted in _OPTIONS:
        if env.get(name) == value and (part in parts) != wanted:
            how = "without" if wanted else "with"
            return (
                f"{name}={value} is set, and the installed Horovod was built "
                f"{how} {'it' if wanted else part.upper()}."
            )
    return None


def _make_flags(env: Mapping[str, str], jobs: int) -> str:
    """Return what somebody wants of make, and what suits the machine otherwise.

    In a recipe of another make the variable is that make's, with its targets' variables
    in it; of them only the number of jobs is taken.
    """
    flags = env.get("MAKEFLAGS", "")
    if flags and "MAKELEVEL" not in env:
        return flags
    found = re.search(r"(?:^|\s)-j(\d+)", flags)
    return f"-j{found[1] if found else jobs}"


def _pip(python: str, command: str) -> list[str]:
    """Return the beginning of every command of pip."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    return [python, "-m", "pip", command, *quiet]


def _path(folders: Sequence[Path], before: str | None) -> str:
    """Put folders in front of a list of folders."""
    return ":".join([*map(str, folders), *([before] if before else [])])
