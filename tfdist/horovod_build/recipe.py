"""The recipe of a build: version, headers, environment and commands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.horovod_build.installed import COULD_NOT_START, BuildError, TensorFlow

HOROVOD_VERSION = "0.28.1"

# Defaults, each dropped if the environment sets its opposite.
_DEFAULTS = {
    "HOROVOD_WITH_TENSORFLOW": "HOROVOD_WITHOUT_TENSORFLOW",
    "HOROVOD_WITHOUT_PYTORCH": "HOROVOD_WITH_PYTORCH",
    "HOROVOD_WITHOUT_MXNET": "HOROVOD_WITH_MXNET",
    "HOROVOD_WITH_GLOO": "HOROVOD_WITHOUT_GLOO",
}

# Newer setuptools ignore `setup_requires`, which names the packages that follow.
_BUILD_TOOLS = (
    "setuptools>=77,<81",
    "wheel",
    "cloudpickle",
    "packaging",
    "psutil",
    "pyyaml",
)
# Horovod's copy of Gloo needs policies that CMake 4 removed.
_CMAKE = "cmake>=3.13,<4"
# Horovod's runner imports distutils, which setuptools provides since Python 3.12.
_RUNNER_NEEDS = 'setuptools; python_version >= "3.12"'

# Variables that a parent make sets for its submakes, of which ours is none.
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")

# Options to check an installed Horovod against: variable, value, part, wanted.
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
    """The programs and folders of a build."""

    cxx: str
    cc: str
    cmake: Path
    tools: Path
    include: Sequence[Path]
    jobs: int


def build_environment(env: Mapping[str, str], ground: Ground) -> dict[str, str]:
    """Return the build environment, which keeps the user's HOROVOD_* and MAKEFLAGS."""
    defaults = {
        name: "1" for name, opposite in _DEFAULTS.items() if opposite not in env
    }
    inherited = {name: value for name, value in env.items() if name not in _OF_MAKE}
    return {
        **defaults,
        **inherited,
        "CC": ground.cc,
        # Horovod passes options of make to any generator.
        "CMAKE_GENERATOR": "Unix Makefiles",
        "CPLUS_INCLUDE_PATH": _path(ground.include, env.get("CPLUS_INCLUDE_PATH")),
        "CXX": ground.cxx,
        "HOROVOD_CMAKE": str(ground.cmake),
        "MAKEFLAGS": _make_flags(env, ground.jobs),
        "PYTHONPATH": _path([ground.tools], env.get("PYTHONPATH")),
        # The build imports TensorFlow, which logs much to stderr.
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


def tools_command(python: str, folder: Path, *, with_cmake: bool) -> list[str]:
    """Return the command that installs the build tools into a separate folder."""
    packages = [*_BUILD_TOOLS, *([_CMAKE] if with_cmake else [])]
    return [*_pip(python, "install"), "--target", str(folder), *packages]


def wheel_command(python: str, folder: Path) -> list[str]:
    """Return the command that compiles Horovod into a wheel."""
    return [
        # Use no cached or published wheel: its name lacks the TensorFlow version.
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
    """Return the commands that install a wheel, in order."""
    return [
        [*_pip(python, "install"), "--force-reinstall", "--no-deps", str(wheel)],
        [*_pip(python, "install"), str(wheel), _RUNNER_NEEDS],
    ]


def unfulfilled(env: Mapping[str, str], parts: Sequence[str]) -> str | None:
    """Return a sentence on an option that a Horovod does not fulfil, or None."""
    for name, value, part, wanted in _OPTIONS:
        if env.get(name) == value and (part in parts) != wanted:
            how = "without" if wanted else "with"
            return (
                f"{name}={value} is set, and the installed Horovod was built "
                f"{how} {'it' if wanted else part.upper()}."
            )
    return None


def _make_flags(env: Mapping[str, str], jobs: int) -> str:
    """Return the user's flags for make, or the number of jobs."""
    flags = env.get("MAKEFLAGS", "")
    if flags and "MAKELEVEL" not in env:
        return flags
    # MAKEFLAGS of a parent make: take only its number of jobs.
    found = re.search(r"(?:^|\s)-j(\d+)", flags)
    return f"-j{found[1] if found else jobs}"


def _pip(python: str, command: str) -> list[str]:
    """Return the common start of all pip commands."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    return [python, "-m", "pip", command, *quiet]


def _path(folders: Sequence[Path], before: str | None) -> str:
    """Prepend folders to a search path."""
    return ":".join([*map(str, folders), *([before] if before else [])])


# The folders where Horovod expects XLA's headers, and where TensorFlow has them now.
_OLD_FOLDER, _NEW_FOLDER = "tensorflow/compiler/xla", "xla"
_XLA_HEADERS = (
    "client/xla_builder.h",
    "service/custom_call_target_registry.h",
    "service/hlo.pb.h",
    "shape.h",
    "xla_data.pb.h",
)
_MOVED = {"client/xla_builder.h": "hlo/builder/xla_builder.h"}

# Folders of third-party headers that TensorFlow's headers include.
_EXTERNAL = {
    "external/farmhash_archive/src": "farmhash.h",
    "external/highwayhash": "highwayhash/arch_specific.h",
}


def forwarding_headers(tensorflow: TensorFlow) -> dict[str, str]:
    """Return headers that forward from the old paths to the new ones."""
    # Check files, not versions: TensorFlow moves headers between releases, and back.
    texts = {}
    for name in _XLA_HEADERS:
        if not (tensorflow.include / _OLD_FOLDER / name).is_file():
            target = _new_place(tensorflow, name)
            texts[f"{_OLD_FOLDER}/{name}"] = f'#pragma once\n#include "{target}"\n'
    return texts


def write_headers(tensorflow: TensorFlow, folder: Path) -> list[Path]:
    """Write the forwarding headers, and return the include folders."""
    for name, text in forwarding_headers(tensorflow).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    external = [
        tensorflow.include / place
        for place, name in _EXTERNAL.items()
        if (tensorflow.include / place / name).is_file()
    ]
    return [folder, *external]


def _new_place(tensorflow: TensorFlow, name: str) -> str:
    """Return the current path of an XLA header."""
    places = [_MOVED.get(name, name), name]
    for place in places:
        if (tensorflow.include / _NEW_FOLDER / place).is_file():
            return f"{_NEW_FOLDER}/{place}"
    looked = ", ".join(f"{_NEW_FOLDER}/{place}" for place in dict.fromkeys(places))
    raise BuildError(
        f"Horovod needs the header {_OLD_FOLDER}/{name}. Received: TensorFlow "
        f"{tensorflow.version}, which has neither that nor {looked} in "
        f"{tensorflow.include}. Install a TensorFlow from 2.18 to 2.21.",
        COULD_NOT_START,
    )
