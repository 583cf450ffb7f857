"""MPI for the ranks of a job: its choice, and an `mpirun` that holds their places."""

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import IO

from tfdist.cluster.hosts.gpus import count_gpus, may_use_gpu
from tfdist.launch import placeholder
from tfdist.launch.console import print_line
from tfdist.launch.events import ENDING_SIGNALS
from tfdist.launch.job import Job, ProcessSpec
from tfdist.launch.machine import available_cores, held_folder, remove_left
from tfdist.launch.remote.host import DEFAULT_SSH, RemoteHost
from tfdist.launch.remote.mpi import host_of, network, options_of_mpirun
from tfdist.launch.result import how_it_ended

_FOREIGN = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM")
_START_SECONDS = 60.0
_END_SECONDS = 5.0
# <linux/prctl.h> and <asm/unistd.h>
_PR_SET_PDEATHSIG = 1
_SYS_PIDFD_GETFD = 438
_MEMORY = "/dev/shm"
_PREFIX = "tfdist-mpi-"
# What a rank may fill of it in Open MPI 5.0.
_SEGMENT_BYTES = 16 * 2**20
_FILES_VARIABLE = "OMPI_MCA_btl_sm_backing_directory"


class MPIStartError(OSError):
    """An `mpirun` that has not started its processes."""


def with_engine(job: Job) -> Job:
    """Return the job with what "auto" means for ranks on this machine."""
    if job.collective != "auto":
        return job
    environ = {**os.environ, **job.env}
    cores, has_mpi = len(available_cores()), _is_bundled()
    decide = partial(choose, job, environ, cores=cores, has_mpi=has_mpi)
    engine = decide(gpus=0)
    if engine == "mpi" and may_use_gpu(environ):
        # TensorFlow takes seconds to answer.
        engine = decide(gpus=count_gpus(environ))
    return replace(job, collective=engine)


def choose(
    job: Job, environ: Mapping[str, str], *, cores: int, gpus: int, has_mpi: bool
) -> str:
    """Return "mpi" for ranks that are all alike, where MPI is the best to join them."""
    # Slurm has its own way to start a job of MPI. Ranks of MPI poll while they wait:
    # four on two cores had 0.83 of the speed that TensorFlow's collectives had. NCCL,
    # which TensorFlow has, joins ranks that have a GPU each.
    is_fast = job.size is not None and max(1, gpus) < job.size <= cores
    is_free = is_fast and "SLURM_JOB_ID" not in environ
    return "mpi" if is_free and has_mpi else "tensorflow"


@contextlib.contextmanager
def places(
    specs: Sequence[ProcessSpec],
    signals: socket.socket | None = None,
    remote: Mapping[str, RemoteHost] | None = None,
    *,
    is_json: bool = False,
) -> Iterator[list[ProcessSpec]]:
    """Hold the places of ranks in an MPI job; yield the ranks with its variables."""
    check_installed()
    remote = remote or {}
    held = held_folder(_PREFIX, _parent(len(specs)))
    with held as folder, tempfile.TemporaryFile() as errors:
        process = _start(_holders(specs, remote, folder), folder, errors)
        try:
            found = _reports(process, len(specs), errors, signals)
            if not remote:
                _keep_to_loopback(process.pid)
            # `mpirun` that is killed removes neither its files nor those of the ranks.
            files = {} if _FILES_VARIABLE in os.environ else {_FILES_VARIABLE: folder}
            defaults = [
                network(spec, remote) | ({} if spec.host in remote else files)
                for spec in specs
            ]
            yield [
                replace(spec, env={**default, **spec.env, **found.get(spec.rank, {})})
                for spec, default in zip(specs, defaults, strict=True)
            ]
            if process.poll() is not None:
                how = how_it_ended(process.returncode)
                line = f"tfdist run: mpirun, which MPI needs, {how}."
                print_line(line, is_json=is_json)
        finally:
            _end(process)


def shell_line(
    specs: Sequence[ProcessSpec], remote: Collection[str] = (), ssh: str = DEFAULT_SSH
) -> str:
    """Return a job as one line for a shell, in which `mpirun` starts the ranks."""
    root = [f"{name}=1" for name in _root_variables()]
    lines = []
    for spec in specs:
        env = {**network(spec, remote), **spec.env}
        lines.append(shlex.split(replace(spec, env=env, unset=()).shell_line()))
    command = _command(lines, [host_of(spec, remote) for spec in specs])
    if remote and ssh != DEFAULT_SSH:
        command[1:1] = ["--prtemca", "plm_ssh_agent", ssh]
    return shlex.join([*(["env", *root] if root else []), *command])


def _holders(
    specs: Sequence[ProcessSpec], remote: Mapping[str, RemoteHost], folder: str
) -> list[str]:
    """Return the `mpirun` that starts the placeholders, on other hosts by our ssh."""
    # Other hosts may have tfdist in another folder.
    code = Path(placeholder.__file__).read_text()
    programs = []
    for spec in specs:
        there = remote.get(spec.host or "")
        python = sys.executable if there is None else there.python
        agent = [] if there is None else [str(there.hello.result()["pid"])]
        programs.append([python, "-I", "-S", "-c", code, *agent])
    command = _command(programs, [host_of(spec, remote) for spec in specs])
    command[1:1] = options_of_mpirun(remote, folder)
    return command


def _parent(count: int) -> str:
    """Return where files of so many ranks go: memory if there is room."""
    if not os.access(_MEMORY, os.W_OK):
        return tempfile.gettempdir()
    remove_left(_PREFIX, _MEMORY)
    # Small in many containers.
    is_large = shutil.disk_usage(_MEMORY).free > count * _SEGMENT_BYTES
    return _MEMORY if is_large else tempfile.gettempdir()


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


def _is_bundled() -> bool:
    """Return whether this Python's environment has mpi4py and Open MPI 5."""
    folder = f"{sys.prefix}/bin"
    has_mpirun = all(shutil.which(name, path=folder) for name in ("mpirun", "prterun"))
    return has_mpirun and find_spec("mpi4py") is not None


def _find_mpirun() -> str | None:
    """Return the `mpirun` of this Python's environment, or that on PATH."""
    return shutil.which("mpirun", path=f"{sys.prefix}/bin") or shutil.which("mpirun")


def _command(programs: Sequence[Sequence[str]], hosts: Sequence[str]) -> list[str]:
    """Return the `mpirun` that starts a program for each rank, in order."""
    mpirun = _find_mpirun()
    assert mpirun is not None
    # The launcher pins the ranks.
    words = [mpirun, "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"]
    ranks = zip(hosts, programs, strict=True)
    for i, ((host, program), same) in enumerate(groupby(ranks)):
        count = len([*same])
        words += [":"] if i else []
        words += ["--host", f"{host}:{count}"] if host else []
        words += ["-np", str(count), *program]
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


def _start(
    command: Sequence[str], folder: str, errors: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start `mpirun`, which keeps its files in a folder and ends with the launcher."""
    launcher = os.getpid()
    return subprocess.Popen(
        command,
        env=_environment() | {"TMPDIR": folder},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        preexec_fn=lambda: _end_with(launcher),  # noqa: PLW1509
    )


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
    # A signal that ends the run waits for the supervisor, and ends this.
    assert process.stdout is not None
    deadline = time.monotonic() + _START_SECONDS
    found: dict[int, dict[str, str]] = {}
    text = b""
    while len(found) < count:
        sources = [process.stdout.fileno()]
        sources += [] if signals is None else [signals.fileno()]
        seconds = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], seconds)
        if signals is not None and signals.fileno() in ready:
            if {*signals.recv(64, socket.MSG_PEEK)} & {*ENDING_SIGNALS}:
                return found
            signals = None
            continue
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
            raise MPIStartError(
                "mpirun does not start a job of Open MPI. "
                f"Received: {len(found)} of {count} ranks, and: {said or 'nothing'}. "
                "Use --collective tensorflow, which needs no MPI."
            )
    return found


def _keep_to_loopback(process_id: int) -> None:
    """Let only this host reach the ports of `mpirun`, which opens them for others."""
    # Open MPI 5.0 has no option for it. The ports stay as they are where the kernel is
    # older than Linux 5.7, or a container forbids this call.
    libc = ctypes.CDLL(None)
    try:
        handle = os.pidfd_open(process_id)
    except OSError:
        return
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
