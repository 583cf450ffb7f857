"""Building and installing Horovod, from the first check to a trial all-reduce."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tfdist.horovod_build.installed import (
    COULD_NOT_START,
    BuildError,
    TensorFlow,
    find_installed,
    find_tensorflow,
)
from tfdist.horovod_build.recipe import (
    HOROVOD_VERSION,
    Ground,
    build_environment,
    forwarding_headers,
    install_commands,
    tools_command,
    unfulfilled,
    wheel_command,
    write_headers,
)
from tfdist.horovod_build.report import PARTS, mismatch, probe, try_all_reduce
from tfdist.horovod_build.toolchain import (
    Toolchain,
    brought_cmake,
    check_target,
    find_toolchain,
    how_to_install,
    write_front,
)

_LOG = "tfdist/horovod-install.log"
# A pattern in the output of the compiler or linker, and the remedy.
_MISSING = (
    (
        r"\bmpi\.h|find (?:-lmpi|MPI)|MPI_C|MPI is not installed",
        f"Install MPI. {how_to_install('mpi')} "
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
)


def install(
    env: Mapping[str, str], *, log: Path, stream: TextIO, force: bool = False
) -> None:
    """Build, install and try Horovod for this TensorFlow, or raise BuildError."""
    tensorflow = find_tensorflow()
    if not force and _already_works(tensorflow, env, stream):
        return
    check_target(env)
    forwarding_headers(tensorflow)
    toolchain = find_toolchain(env)
    log = _new_log(log)
    _print_plan(stream, tensorflow, toolchain, log)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        _build(Path(folder), tensorflow, toolchain, env, log, stream)
    _say(stream, "[4/4] all-reduce on two processes")
    parts = probe(env)
    try_all_reduce(parts, env)
    _say(stream, _success(tensorflow, parts))


def default_log(env: Mapping[str, str], home: Path) -> Path:
    """Return the default path of the log, in the user's cache."""
    caches = env.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else home / ".cache") / _LOG


def _already_works(
    tensorflow: TensorFlow, env: Mapping[str, str], stream: TextIO
) -> bool:
    """Return whether a suitable Horovod works; print that, or the reason to build."""
    horovod = find_installed()
    if horovod is None:
        return False
    problem = mismatch(horovod, tensorflow)
    if problem is None and horovod.version.partition("+")[0] != HOROVOD_VERSION:
        problem = f"Horovod {horovod.version} is installed, not {HOROVOD_VERSION}."
    try:
        parts = () if problem else probe(env)
        problem = problem or unfulfilled(env, parts)
        if problem is None:
            try_all_reduce(parts, env)
            _say(stream, _success(tensorflow, parts))
            _say(stream, "It was installed already; --force builds it again.")
            return True
    except BuildError as error:
        problem = str(error)
    _say(stream, f"Building again: {problem}")
    return False


def _build(
    folder: Path,
    tensorflow: TensorFlow,
    toolchain: Toolchain,
    env: Mapping[str, str],
    log: Path,
    stream: TextIO,
) -> None:
    """Fetch the tools, compile a wheel and install it."""
    tools, wheels, python = folder / "tools", folder / "wheels", sys.executable
    path = toolchain.cmake.path
    ground = Ground(
        cxx=toolchain.cxx,
        cc=toolchain.cc,
        cmake=write_front(path or brought_cmake(tools), folder / "cmake"),
        tools=tools,
        include=write_headers(tensorflow, folder / "include"),
        jobs=len(os.sched_getaffinity(0)),
    )
    _say(stream, "[1/4] fetching build tools into a temporary folder")
    _run(tools_command(python, tools, with_cmake=path is None), env, log, stream)
    environment = build_environment(env, ground)
    _say(stream, f"[2/4] compiling (make {environment['MAKEFLAGS']})")
    _run(wheel_command(python, wheels), environment, log, stream)
    _say(stream, "[3/4] installing")
    [wheel] = wheels.glob("horovod-*.whl")
    for command in install_commands(python, wheel):
        _run(command, env, log, stream)


def _run(
    command: Sequence[str], env: Mapping[str, str], log: Path, stream: TextIO
) -> None:
    """Run a command; if it fails, name the missing package."""
    code, output = run_streamed(command, env, log, stream)
    if code != 0:
        advice = [text for pattern, text in _MISSING if re.search(pattern, output)]
        raise BuildError(
            f"Horovod could not be built. Received: exit code {code} of "
            f"{shlex.join(command[:4])}; all output is in {log}. "
            f"{advice[0] if advice else 'Read the first error in it.'}"
        )


def run_streamed(
    command: Sequence[str], env: Mapping[str, str], log: Path, stream: TextIO
) -> tuple[int, str]:
    """Run a command, copying output to a stream and a log; return code and output."""
    lines = []
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        file.write(f"$ {shlex.join(command)}\n")
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            file.write(line)
            print(line, end="", file=stream, flush=True)
    return process.returncode, "".join(lines)


def _new_log(path: Path) -> Path:
    """Create an empty log file."""
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    except OSError as error:
        raise BuildError(
            f"The log must be a file that can be written. Received: {path} "
            f"({error.strerror}). Choose another: --log FILE",
            COULD_NOT_START,
        ) from None
    return path


def _print_plan(
    stream: TextIO, tensorflow: TensorFlow, toolchain: Toolchain, log: Path
) -> None:
    """Print the programs that the build uses."""
    mpi = f"built in ({toolchain.mpi})" if toolchain.mpi else "not built in"
    rows = (
        ("compiler", f"{toolchain.compiler}, {toolchain.cxx}"),
        ("CMake", toolchain.cmake.description),
        ("MPI", mpi),
        ("log", str(log)),
    )
    _say(stream, f"Horovod {HOROVOD_VERSION} for TensorFlow {tensorflow.version}")
    for name, text in rows:
        _say(stream, f"  {name:<10}{text}")


def _success(tensorflow: TensorFlow, parts: tuple[str, ...]) -> str:
    """Return the line of success."""
    built = ", ".join(PARTS[part] for part in parts)
    return (
        f"Horovod {HOROVOD_VERSION} works with TensorFlow {tensorflow.version} "
        f"({built}): two processes have added up."
    )


def _say(stream: TextIO, text: str) -> None:
    """Print a line and flush it."""
    print(text, file=stream, flush=True)
