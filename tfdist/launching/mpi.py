"""MPI for the ranks of a job: its choice, and an `mpirun` that holds their places."""

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from multiprocessing.connection import wait
from typing import IO

from tfdist.cluster.this_host import core_quota, count_gpus, may_use_gpu
from tfdist.launching import mpi_placeholder
from tfdist.launching.console import print_line
from tfdist.launching.events import ending_signal
from tfdist.launching.isolation import enter_network
from tfdist.launching.job import Job, ProcessSpec
from tfdist.launching.machine import available_cores, held_folder, remove_left
from tfdist.launching.mpi_gate import Gate, keep_to_loopback
from tfdist.launching.result import how_it_ended

_FOREIGN = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM")
# How parameters end that name interfaces of the host's network.
_INTERFACES = ("_if_include", "_if_exclude")
_START_SECONDS = 60.0
_END_SECONDS = 5.0
# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
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
    cores, has_mpi = len(available_cores()[: core_quota()]), _is_bundled()
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
def joined_by_mpi(
    specs: Sequence[ProcessSpec],
    signals: socket.socket | None = None,
    *,
    is_json: bool = False,
) -> Iterator[list[ProcessSpec]]:
    """Hold the places of ranks in an MPI job; yield the ranks with its variables."""
    check_installed()
    count = len(specs)
    held = held_folder(_PREFIX, _parent(count))
    with held as folder, _started(count, folder, signals) as (process, found):
        # `mpirun` that is killed removes neither its files nor those of the ranks.
        files = {} if _FILES_VARIABLE in os.environ else {_FILES_VARIABLE: folder}
        yield [
            replace(spec, env={**files, **spec.env, **found.get(spec.rank, {})})
            for spec in specs
        ]
        if process.poll() is not None:
            how = how_it_ended(process.returncode)
            line = f"tfdist run: mpirun, which MPI needs, {how}."
            print_line(line, is_json=is_json)


def shell_line(specs: Sequence[ProcessSpec]) -> str:
    """Return a job as one line for a shell, in which `mpirun` starts the ranks."""
    root = [f"{name}=1" for name in _root_variables()]
    ranks = [shlex.split(replace(spec, unset=()).shell_line()) for spec in specs]
    return shlex.join([*(["env", *root] if root else []), *_command(ranks)])


def _parent(count: int) -> str:
    """Return where files of so many ranks go: memory if there is room."""
    if not os.access(_MEMORY, os.W_OK):
        return tempfile.gettempdir()
    remove_left(_PREFIX, _MEMORY)
    # Small in many containers.
    is_large = shutil.disk_usage(_MEMORY).free > count * _SEGMENT_BYTES
    return _MEMORY if is_large else tempfile.gettempdir()


def _command(programs: Sequence[Sequence[str]]) -> list[str]:
    """Return the `mpirun` that starts a program for each rank, in order."""
    mpirun = find_mpirun()
    assert mpirun is not None
    # The launcher pins the ranks.
    words = [mpirun, "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"]
    for i, (program, same) in enumerate(groupby(programs)):
        words += [":"] if i else []
        words += ["-np", str(len([*same])), *program]
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


@contextlib.contextmanager
def _started(
    count: int, folder: str, signals: socket.socket | None
) -> "Iterator[tuple[subprocess.Popen[bytes], dict[int, dict[str, str]]]]":
    """Run `mpirun` in a network of its own, with placeholders; yield its variables."""
    command = _command([[sys.executable, "-I", "-S", mpi_placeholder.__file__]] * count)
    # The system may forbid such a network, or a file of Open MPI ask for another one.
    for has_network in (True, False):
        with contextlib.ExitStack() as stack:
            try:
                errors = stack.enter_context(tempfile.TemporaryFile())
                process = _start(command, folder, errors, has_network=has_network)
                stack.callback(_end, process)
                gate = Gate(process.pid) if has_network else None
                if gate is not None:
                    stack.callback(gate.close)
                found = _reports(process, count, errors, signals)
            except (OSError, subprocess.SubprocessError):
                if has_network:
                    continue
                raise
            if gate is not None:
                found = {rank: gate.redirect(one) for rank, one in found.items()}
            else:
                keep_to_loopback(process.pid)
            yield process, found
            return


def _start(
    command: Sequence[str], folder: str, errors: IO[bytes], *, has_network: bool
) -> "subprocess.Popen[bytes]":
    """Start `mpirun`, which keeps its files in a folder and ends with the launcher."""
    launcher = os.getpid()
    env = _environment() | {"TMPDIR": folder}
    if has_network:
        env = {name: env[name] for name in env if not name.endswith(_INTERFACES)}
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        preexec_fn=lambda: _prepare(launcher, has_network=has_network),  # noqa: PLW1509
    )


def _prepare(launcher: int, *, has_network: bool) -> None:
    """Have `mpirun` end with the launcher, if wanted in a network of its own."""
    if has_network:
        enter_network()
    _end_with(launcher)


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
        ready = wait(sources, max(0.0, deadline - time.monotonic()))
        if signals is not None and signals.fileno() in ready:
            if ending_signal(signals):
                return found
            signals = None
            continue
        data = os.read(sources[0], 1 << 16) if ready else b""
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            variables = mpi_placeholder.unpack(line.decode(errors="replace"))
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


def check_installed() -> None:
    """Raise ImportError if mpi4py or `mpirun` is missing."""
    missing = [] if find_spec("mpi4py") else ["mpi4py"]
    if find_mpirun() is None:
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


def find_mpirun() -> str | None:
    """Return the `mpirun` of this Python's environment, or that on PATH."""
    return shutil.which("mpirun", path=f"{sys.prefix}/bin") or shutil.which("mpirun")
