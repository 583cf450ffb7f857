"""An `mpirun` that holds the places of the ranks of a job."""

import contextlib
import ctypes
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO

from tfdist.launch.console import print_line
from tfdist.launch.events import ENDING_SIGNALS
from tfdist.launch.isolation import enter_network
from tfdist.launch.job import ProcessSpec
from tfdist.launch.machine import held_folder, remove_left
from tfdist.launch.mpi import placeholder
from tfdist.launch.mpi.choice import check_installed, find_mpirun
from tfdist.launch.mpi.ports import Gate, keep_to_loopback
from tfdist.launch.remote.host import DEFAULT_SSH, RemoteHost
from tfdist.launch.remote.mpi import host_of, network, options_of_mpirun
from tfdist.launch.result import how_it_ended

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
    with held as folder, _started(specs, folder, signals, remote) as (process, found):
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


def _command(programs: Sequence[Sequence[str]], hosts: Sequence[str]) -> list[str]:
    """Return the `mpirun` that starts a program for each rank, in order."""
    mpirun = find_mpirun()
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


@contextlib.contextmanager
def _started(
    specs: Sequence[ProcessSpec],
    folder: str,
    signals: socket.socket | None,
    remote: Mapping[str, RemoteHost],
) -> "Iterator[tuple[subprocess.Popen[bytes], dict[int, dict[str, str]]]]":
    """Run `mpirun`, within one host in a network of its own; yield its variables."""
    command = _holders(specs, remote, folder)
    # The system may forbid such a network, or a file of Open MPI ask for another one.
    for has_network in (False,) if remote else (True, False):
        with contextlib.ExitStack() as stack:
            try:
                errors = stack.enter_context(tempfile.TemporaryFile())
                process = _start(command, folder, errors, has_network=has_network)
                stack.callback(_end, process)
                gate = Gate(process.pid) if has_network else None
                if gate is not None:
                    stack.callback(gate.close)
                found = _reports(process, len(specs), errors, signals)
            except (OSError, subprocess.SubprocessError):
                if has_network:
                    continue
                raise
            if gate is not None:
                found = {rank: gate.lead(one) for rank, one in found.items()}
            elif not remote:
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
