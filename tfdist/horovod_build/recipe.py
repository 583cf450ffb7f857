"""The recipe of a build: version, headers, environment and commands."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.horovod_build.installed import COULD_NOT_START, BuildError, TensorFlow

HOROVOD_VERSION = "0.28.1"
# Of the source archive on PyPI, which never changes.
_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# Defaults, each dropped if the environment sets its opposite.
_DEFAULTS = {
    "HOROVOD_WITH_TENSORFLOW": "HOROVOD_WITHOUT_TENSORFLOW",
    "HOROVOD_WITHOUT_PYTORCH": "HOROVOD_WITH_PYTORCH",
    "HOROVOD_WITHOUT_MXNET": "HOROVOD_WITH_MXNET",
    "HOROVOD_WITH_GLOO": "HOROVOD_WITHOUT_GLOO",
}
_BUILD_TOOLS = (
    # Horovod's copy of Gloo needs policies that CMake 4 removed.
    "cmake>=3.13,<4",
    # Newer setuptools ignore `setup_requires`, which names the packages that follow.
    "setuptools>=77,<81",
    "wheel",
    "cloudpickle",
    "packaging",
    "psutil",
    "pyyaml",
)
# The binary in PyPI's package, without its Python wrapper.
_CMAKE = "cmake/data/bin/cmake"
# Horovod's runner imports distutils, which setuptools provides since Python 3.12.
_RUNNER_NEEDS = 'setuptools; python_version >= "3.12"'
# Variables that a parent make sets for its submakes, of which ours is none.
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
# The options of Horovod's build, and the part that each asks for or forbids.
_OPTIONS = (
    ("HOROVOD_WITH_GLOO=1", "Gloo", True),
    ("HOROVOD_WITHOUT_GLOO=1", "Gloo", False),
    ("HOROVOD_WITH_MPI=1", "MPI", True),
    ("HOROVOD_WITHOUT_MPI=1", "MPI", False),
    ("HOROVOD_GPU_OPERATIONS=NCCL", "NCCL", True),
    ("HOROVOD_GPU_ALLREDUCE=NCCL", "NCCL", True),
)


def build_environment(
    env: Mapping[str, str], folder: Path, include: Sequence[Path]
) -> dict[str, str]:
    """Return the build environment, which keeps the user's HOROVOD_* and MAKEFLAGS."""
    if "MAKELEVEL" in env:
        env = {name: value for name, value in env.items() if name not in _OF_MAKE}
    cmake = env.get("HOROVOD_CMAKE", folder / "tools" / _CMAKE)
    return {
        **{name: "1" for name, opposite in _DEFAULTS.items() if opposite not in env},
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        # The build imports TensorFlow, which logs much to stderr.
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **env,
        # Horovod passes options of make to any generator.
        "CMAKE_GENERATOR": "Unix Makefiles",
        "CPLUS_INCLUDE_PATH": _path(include, env.get("CPLUS_INCLUDE_PATH")),
        "HOROVOD_CMAKE": str(_write_front(str(cmake), folder / "cmake")),
        "PYTHONPATH": _path([folder / "tools"], env.get("PYTHONPATH")),
    }


def tools_command(folder: Path) -> list[str]:
    """Return the command that installs the build tools into a separate folder."""
    return [*_pip("install"), "--target", str(folder / "tools"), *_BUILD_TOOLS]


def wheel_command(folder: Path) -> list[str]:
    """Return the command that compiles Horovod into a wheel, from the known source."""
    folder.mkdir(exist_ok=True)
    # pip reads hashes from files alone.
    source = folder / "horovod.txt"
    source.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{_SHA256}\n")
    return [
        # Use no cached or published wheel: its name lacks the TensorFlow version.
        *_pip("wheel"),
        "--verbose",
        "--use-pep517",
        "--no-build-isolation",
        "--no-deps",
        "--no-cache-dir",
        "--no-binary=horovod",
        f"--wheel-dir={folder}",
        f"--requirement={source}",
    ]


def install_commands(wheel: Path) -> list[list[str]]:
    """Return the commands that install a wheel, in order."""
    return [
        [*_pip("install"), "--force-reinstall", "--no-deps", str(wheel)],
        [*_pip("install"), str(wheel), _RUNNER_NEEDS],
    ]


def unfulfilled(env: Mapping[str, str], parts: Sequence[str]) -> str | None:
    """Return a sentence on an option that a Horovod does not fulfil, or None."""
    for option, part, wanted in _OPTIONS:
        name, _, value = option.partition("=")
        if env.get(name) == value and (part in parts) != wanted:
            how = "without" if wanted else "with"
            return f"{option} is set, and the installed Horovod was built {how} {part}."
    return None


def _pip(command: str) -> list[str]:
    """Return the common start of all pip commands."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    return [sys.executable, "-m", "pip", command, *quiet]


def _path(folders: Sequence[Path], before: str | None) -> str:
    """Prepend folders to a search path."""
    return ":".join([*map(str, folders), *([before] if before else [])])


def _write_front(cmake: str, path: Path) -> Path:
    """Write a script that calls CMake without debugging symbols."""
    # Symbols take a third of the build time, and 56 of the library's 58 MB.
    program = shlex.quote(cmake)
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --build ] && exec {program} "$@"\n'
        f'exec {program} "$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG"\n'
    )
    path.chmod(0o755)
    return path


# The folders where Horovod expects XLA's headers, and where TensorFlow has them now.
_OLD_FOLDER, _NEW_FOLDER = "tensorflow/compiler/xla", "xla"
# Each header, and its new name where that differs.
_XLA_HEADERS = {
    "client/xla_builder.h": "hlo/builder/xla_builder.h",
    "service/custom_call_target_registry.h": "",
    "service/hlo.pb.h": "",
    "shape.h": "",
    "xla_data.pb.h": "",
}
# Folders of third-party headers that TensorFlow's headers include.
_EXTERNAL = ("external/farmhash_archive/src", "external/highwayhash")


def write_headers(tensorflow: TensorFlow, folder: Path) -> list[Path]:
    """Write headers that forward old paths to new ones; return the include folders."""
    # Check files, not versions: TensorFlow moves headers between releases, and back.
    for name in _XLA_HEADERS:
        if not (tensorflow.include / _OLD_FOLDER / name).is_file():
            place = _new_place(tensorflow, name)
            path = folder / _OLD_FOLDER / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'#pragma once\n#include "{place}"\n')
    external = [tensorflow.include / place for place in _EXTERNAL]
    return [folder, *filter(Path.is_dir, external)]


def _new_place(tensorflow: TensorFlow, name: str) -> str:
    """Return the current path of an XLA header."""
    for place in filter(None, (_XLA_HEADERS[name], name)):
        if (tensorflow.include / _NEW_FOLDER / place).is_file():
            return f"{_NEW_FOLDER}/{place}"
    raise BuildError(
        f"Horovod needs the header {_OLD_FOLDER}/{name}. Received: TensorFlow "
        f"{tensorflow.version}, which has it neither there nor under {_NEW_FOLDER} in "
        f"{tensorflow.include}. Install a TensorFlow from 2.18 to 2.21.",
        COULD_NOT_START,
    )
