"""Building and installing Horovod, from the first check to a trial all-reduce."""

import importlib.util
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import TextIO

from tfdist.horovod_build.installed import (
    COULD_NOT_START,
    BuildError,
    TensorFlow,
    check_fit,
    find_installed,
    find_tensorflow,
    try_all_reduce,
)
from tfdist.horovod_build.recipe import (
    HOROVOD_VERSION,
    build_environment,
    install_commands,
    tools_command,
    unfulfilled,
    wheel_command,
    write_headers,
)

_COMPILER = (
    "Debian and Ubuntu: apt-get install g++ make; Fedora: dnf install gcc-c++ make; "
    "without root: conda-forge's cxx-compiler and make, or a module of the cluster."
)
# A pattern in the output of the compiler or linker, and the remedy.
_MISSING = (
    (
        r"\bmpi\.h|find (?:-lmpi|MPI)|MPI_C|MPI is not installed",
        "Install MPI. Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin; "
        "Fedora: dnf install openmpi-devel, then: module load mpi. "
        "Or build without it: HOROVOD_WITHOUT_MPI=1 tfdist horovod install",
    ),
    (
        r"\bnccl\.h: No such|find -lnccl",
        "Install NCCL (https://developer.nvidia.com/nccl), and set "
        "HOROVOD_NCCL_HOME to its folder.",
    ),
    (
        r"\bcuda(?:_runtime)?\.h: No such|find -lcuda",
        "Install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), and "
        "set HOROVOD_CUDA_HOME to its folder.",
    ),
    (
        r"(?:unrecognized|invalid) .*\+\+17|CXX17",
        f"Install a compiler that knows C++17. {_COMPILER}",
    ),
)


def install(
    env: Mapping[str, str], *, log: Path, stream: TextIO, force: bool = False
) -> None:
    """Build, install and try Horovod for this TensorFlow, or raise BuildError."""
    tensorflow = find_tensorflow()
    if not force and _already_works(tensorflow, env, stream):
        return
    check_target(env)
    check_programs(env)
    _say(stream, f"Horovod {HOROVOD_VERSION} for TensorFlow {tensorflow.version}")
    log = log.absolute()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("w", encoding="utf-8")
    except OSError as error:
        raise BuildError(
            f"The log must be a file that can be written. Received: {log} "
            f"({error.strerror}). Choose another: --log FILE",
            COULD_NOT_START,
        ) from None
    with file, tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        _say(stream, f"  log       {log}")
        _build(Path(folder), tensorflow, env, file, stream)
    _say(stream, "[4/4] all-reduce on two processes")
    _try(tensorflow, env, stream)


def default_log(env: Mapping[str, str], home: Path) -> Path:
    """Return the default path of the log, in the user's cache."""
    caches = env.get("XDG_CACHE_HOME")
    return Path(caches or home / ".cache", "tfdist/horovod-install.log")


def check_programs(env: Mapping[str, str]) -> None:
    """Refuse a missing compiler or make."""
    path = env.get("PATH")
    # Programs that CMake finds; a variable that names a compiler may hold its options.
    for names in (
        _program_in(env, "CXX") or ("c++", "g++", "clang++"),
        _program_in(env, "CC") or ("cc", "gcc", "clang"),
        ("make",),
    ):
        if not any(which(name, path=path) for name in names):
            raise BuildError(
                "A compiler for C and C++, and make, must be installed. Received: no "
                f"{' or '.join(names)} on PATH ({path}). {_COMPILER}",
                COULD_NOT_START,
            )


def _program_in(env: Mapping[str, str], name: str) -> list[str]:
    """Return the program of a variable that holds a command, or nothing."""
    try:
        return shlex.split(env.get(name, ""))[:1]
    except ValueError as error:
        raise BuildError(
            f"{name} must be a command. Received: {name}={env[name]} ({error}). "
            f"Correct it, or unset {name}.",
            COULD_NOT_START,
        ) from None


def check_target(env: Mapping[str, str]) -> None:
    """Check that pip can install here, before minutes of compilation."""
    if importlib.util.find_spec("pip") is None:
        raise BuildError(
            "pip must be installed: it builds Horovod and installs it. Received: "
            f"{sys.executable}, without pip. Run: {sys.executable} -m ensurepip, or, "
            "with uv: uv pip install pip",
            COULD_NOT_START,
        )
    is_managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    in_virtual_environment = sys.prefix != sys.base_prefix
    if is_managed and not (
        in_virtual_environment or "PIP_BREAK_SYSTEM_PACKAGES" in env
    ):
        raise BuildError(
            "Horovod must go to an environment that pip may change. Received: "
            f"{sys.executable}, which the system manages. "
            "Use a virtual environment: python -m venv .venv",
            COULD_NOT_START,
        )


def _already_works(
    tensorflow: TensorFlow, env: Mapping[str, str], stream: TextIO
) -> bool:
    """Return whether a suitable Horovod works; print that, or the reason to build."""
    horovod = find_installed()
    if horovod is None:
        return False
    try:
        problem = unfulfilled(env, check_fit(horovod, tensorflow))
        if horovod.version.partition("+")[0] != HOROVOD_VERSION:
            problem = f"Horovod {horovod.version} is installed, not {HOROVOD_VERSION}."
        if problem is None:
            _try(tensorflow, env, stream)
            _say(stream, "It was installed already; --force builds it again.")
            return True
    except BuildError as error:
        problem = str(error)
    _say(stream, f"Building again: {problem}")
    return False


def _try(tensorflow: TensorFlow, env: Mapping[str, str], stream: TextIO) -> None:
    """Run an all-reduce with the installed Horovod, and print its parts."""
    parts = check_fit(find_installed(), tensorflow)
    try_all_reduce(parts, env)
    _say(
        stream,
        f"Horovod {HOROVOD_VERSION} works with TensorFlow {tensorflow.version} "
        f"({', '.join(parts)}): two processes have added up.",
    )


def _build(
    folder: Path,
    tensorflow: TensorFlow,
    env: Mapping[str, str],
    log: TextIO,
    stream: TextIO,
) -> None:
    """Fetch the tools, compile a wheel and install it."""
    wheels = folder / "wheels"
    include = write_headers(tensorflow, folder / "include")
    environment = build_environment(env, folder, include)
    _say(stream, "[1/4] fetching build tools into a temporary folder")
    _run(tools_command(folder), env, log, stream)
    _say(stream, f"[2/4] compiling (make {environment['MAKEFLAGS']})")
    _run(wheel_command(wheels), environment, log, stream)
    _say(stream, "[3/4] installing")
    [wheel] = wheels.glob("horovod-*.whl")
    for command in install_commands(wheel):
        _run(command, env, log, stream)


def _run(
    command: Sequence[str], env: Mapping[str, str], log: TextIO, stream: TextIO
) -> None:
    """Run a command, copy its output, and name the missing package if it fails."""
    lines = [f"$ {shlex.join(command)}\n"]
    log.write(lines[0])
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            for target in (log, stream):
                print(line, end="", file=target, flush=True)
    if process.returncode != 0:
        output = "".join(lines)
        advice = [text for pattern, text in _MISSING if re.search(pattern, output)]
        raise BuildError(
            f"Horovod could not be built. Received: exit code {process.returncode} of "
            f"{shlex.join(command[:4])}; all output is in {log.name}. "
            f"{advice[0] if advice else 'Read the first error in it.'}"
        )


def _say(stream: TextIO, text: str) -> None:
    """Print a line and flush it."""
    print(text, file=stream, flush=True)
