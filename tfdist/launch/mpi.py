"""MPI for the ranks of a job: an `mpirun` that holds their places."""

import contextlib
import ctypes
import os
import select
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import groupby
from typing import IO

from tfdist.launch import placeholder
from tfdist.launch.job import ProcessSpec
from tfdist.launch.result import how_it_ended

_FOREIGN = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM")
_START_SECONDS = 60.0
_END_SECONDS = 5.0
# <linux/prctl.h> and <asm/unistd.h>
_PR_SET_PDEATHSIG = 1
_SYS_PIDFD_GETFD = 438
_MEMORY = "/dev/shm"
_FILES_VARIABLE = "OMPI_MCA_btl_sm_backing_directory"


@contextlib.contextmanager
def places(
    specs: Sequence[ProcessSpec], signals: socket.socket | None = None
) -> Iterator[list[ProcessSpec]]:
    """Hold the places of ranks in an MPI job; yield the ranks with its variables."""
    check_installed()
    holder = [sys.executable, "-I", "-S", placeholder.__file__]
    command = _command([holder] * len(specs))
    launcher = os.getpid()
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="tfdist-mpi-", dir=memory) as folder,
        tempfile.TemporaryFile() as errors,
    ):
        process = subprocess.Popen(
            command,
            env=_environment() | {"TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=lambda: _end_with(launcher),  # noqa: PLW1509
        )
        try:
            found = _reports(process, len(specs), errors, signals)
            _keep_to_loopback(process.pid)
            # `mpirun` that is killed removes neither its files nor those of the ranks.
            files = {} if _FILES_VARIABLE in os.environ else {_FILES_VARIABLE: folder}
            yield [
                replace(spec, env={**files, **spec.env, **found[spec.rank]})
                for spec in specs
            ]
            if process.poll() is not None:
                how = how_it_ended(process.returncode)
                print(f"tfdist run: mpirun, which MPI needs, {how}.", file=sys.stderr)
        finally:
            _end(process)


def shell_line(specs: Sequence[ProcessSpec]) -> str:
    """Return a job as one line for a shell, in which `mpirun` starts the ranks."""
    root = [f"{name}=1" for name in _root_variables()]
    lines = [shlex.split(replace(spec, unset=()).shell_line()) for spec in specs]
    return shlex.join([*(["env", *root] if root else []), *_command(lines)])


def check_installed() -> None:
    """Raise ImportError if mpi4py or `mpirun` is missing."""
    missing = [] if find_spec("mpi4py") else ["mpi4py"]
    if _find_mpirun() is None:
        missing.append("mpirun")
    if missing:
        raise ImportError(
            "collective='mpi' needs mpi4py and Open MPI. Received: no "
            f"{' and no '.join(missing)}. Run pip install 'tfdist[mpi]', or leave "
            "--collective out."
        )


def _find_mpirun() -> str | None:
    """Return the `mpirun` of this Python's environment, or that on PATH."""
    return shutil.which("mpirun", path=f"{sys.prefix}/bin") or shutil.which("mpirun")


def _command(programs: Sequence[Sequence[str]]) -> list[str]:
    """Return the `mpirun` that starts a program for each rank, in order."""
    mpirun = _find_mpirun()
    assert mpirun is not None
    # The launcher pins the ranks.
    words = [mpirun, "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"]
    for i, (program, same) in enumerate(groupby(programs)):
        words += [*([":"] if i else []), "-np", str(len([*same])), *program]
    return words


def _environment() -> dict[str, str]:
    """Return the environment of `mpirun`, which may itself run under MPI or Slurm."""
    env = {
        name: value
        for name, value in os.environ.items()
        if "_MCA_" in name or not name.startswith(_FOREIGN)
    }
    return env | dict.fromkeys(_root_variables(), "1")


def _root_variables() -> tuple[str, ...]:
    """Return the variables that allow root to use Open MPI, as in containers."""
    if os.geteuid() != 0:
        return ()
    return "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"


def _end_with(launcher: int) -> None:
    """Have the kernel end this process when the launcher dies, as after SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if os.getppid() != launcher:
        os._exit(1)


def _reports(
    process: "subprocess.Popen[bytes]",
    count: int,
    errors: IO[bytes],
    signals: socket.socket | None,
) -> dict[int, dict[str, str]]:
    """Wait until all placeholders have reported; return their variables by rank."""
    assert process.stdout is not None
    deadline = time.monotonic() + _START_SECONDS
    found: dict[int, dict[str, str]] = {}
    text = b""
    while len(found) < count:
        sources = [process.stdout.fileno()]
        sources += [] if signals is None else [signals.fileno()]
        seconds = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], seconds)
        if sources[1:] and sources[1] in ready:
            raise KeyboardInterrupt
        data = os.read(sources[0], 1 << 16) if ready else b""
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            variables = placeholder.unpack(line.decode(errors="replace"))
            if "PMIX_RANK" in variables:
                found[int(variables["PMIX_RANK"])] = variables
        if not data:
            errors.seek(0)
            printed = errors.read().decode(errors="replace").split("\n")
            said = " ".join(line.strip("- ") for line in printed if line.strip("- "))
            raise OSError(
                "mpirun does not start a job of Open MPI. "
                f"Received: {len(found)} of {count} ranks, and: {said or 'nothing'}. "
                "Use --collective tensorflow, which needs no MPI."
            )
    return found


def _keep_to_loopback(process_id: int) -> None:
    """Let only this host reach the ports of `mpirun`, which opens them for others."""
    # Open MPI 5.0 has no option for it. The ports stay as they are where the kernel is
    # older than Linux 5.7, or a container forbids this call.
    libc, handle = ctypes.CDLL(None), os.pidfd_open(process_id)
    for number in os.listdir(f"/proc/{process_id}/fd"):
        copy = libc.syscall(_SYS_PIDFD_GETFD, handle, int(number), 0)
        if copy < 0:
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as port, contextlib.suppress(OSError):
            if port.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                port.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    os.close(handle)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End `mpirun`, which removes its files, and its placeholders."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
