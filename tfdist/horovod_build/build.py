"""Building and installing Horovod, from the first check to the first all-reduce."""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from tfdist.horovod_build.cmake import brought_cmake, write_front
from tfdist.horovod_build.errors import BuildError
from tfdist.horovod_build.headers import forwarding_headers, write_headers
from tfdist.horovod_build.installed import find_installed
from tfdist.horovod_build.log import Log
from tfdist.horovod_build.progress import Progress
from tfdist.horovod_build.recipe import (
    HOROVOD_VERSION,
    Ground,
    build_environment,
    install_commands,
    tools_command,
    unfulfilled,
    wheel_command,
)
from tfdist.horovod_build.report import mismatch
from tfdist.horovod_build.target import check_target
from tfdist.horovod_build.tensorflow import TensorFlow, find_tensorflow
from tfdist.horovod_build.toolchain import Toolchain, find_toolchain
from tfdist.horovod_build.trial import PARTS, probe, try_all_reduce

_PHASES = 4


def install(
    env: Mapping[str, str], *, log: Path, stream: TextIO, force: bool = False
) -> None:
    """Build Horovod for the installed TensorFlow, install it, and try it.

    Horovod's source stays as it is. A build that fails leaves the Horovod that was
    there before.

    Args:
        env: The environment of this process; HOROVOD_* are Horovod's own options.
        log: Where to write what the commands print.
        stream: Where to tell how far it is.
        force: Whether to build also where a fitting Horovod works. Default False.

    Raises:
        BuildError: If something is missing, fails, or does not work.
    """
    tensorflow = find_tensorflow()
    if not force and _already_works(tensorflow, env, stream):
        return
    check_target(env)
    forwarding_headers(tensorflow)
    toolchain = find_toolchain(env)
    file = Log(log)
    _tell(stream, tensorflow, toolchain, file)
    progress = Progress(stream, phases=_PHASES)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        _build(Path(folder), tensorflow, toolchain, env, file, progress)
    with progress.phase("all-reduce on two processes"):
        parts = probe(env)
        try_all_reduce(parts, env)
    _say(stream, _success(tensorflow, parts))


def _already_works(
    tensorflow: TensorFlow, env: Mapping[str, str], stream: TextIO
) -> bool:
    """Tell whether there is nothing to do, and say so, or say why there is."""
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
    log: Log,
    progress: Progress,
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
    with progress.phase("fetching what builds it, into a temporary folder"):
        _run(log, tools_command(python, tools, with_cmake=path is None), env)
    environment = build_environment(env, ground)
    with progress.phase(f"compiling (make {environment['MAKEFLAGS']})"):
        _run(log, wheel_command(python, wheels), environment, progress)
    with progress.phase("installing"):
        [wheel] = wheels.glob("horovod-*.whl")
        for command in install_commands(python, wheel):
            _run(log, command, env)


def _run(
    log: Log,
    command: list[str],
    env: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Run a command; if it fails, say which line of the log tells why."""
    watch = None if progress is None else progress.watch
    if log.run(command, env, watch) != 0:
        failure = log.failure()
        raise BuildError(
            f"Horovod could not be built. {log.path}, line {failure.number}, says:\n"
            f"    {failure.text}\n{failure.advice}"
        )


def _tell(
    stream: TextIO, tensorflow: TensorFlow, toolchain: Toolchain, log: Log
) -> None:
    """Say what is built from what."""
    mpi = f"built in ({toolchain.mpi})" if toolchain.mpi else "not built in"
    rows = (
        ("compiler", f"{toolchain.compiler}, {toolchain.cxx}"),
        ("CMake", toolchain.cmake.description),
        ("MPI", mpi),
        ("log", str(log.path)),
    )
    _say(stream, f"Horovod {HOROVOD_VERSION} for TensorFlow {tensorflow.version}")
    for name, text in rows:
        _say(stream, f"  {name:<10}{text}")


def _success(tensorflow: TensorFlow, parts: tuple[str, ...]) -> str:
    """Say what there is now."""
    built = ", ".join(PARTS[part] for part in parts)
    return (
        f"Horovod {HOROVOD_VERSION} works with TensorFlow {tensorflow.version} "
        f"({built}): two processes have added up."
    )


def _say(stream: TextIO, text: str) -> None:
    """Write a line at once, also into a pipe."""
    print(text, file=stream, flush=True)
