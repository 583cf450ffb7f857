"""Checking an installed Horovod: its parts, and an all-reduce of two processes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tfdist.horovod_build.installed import (
    BuildError,
    Installed,
    TensorFlow,
    find_installed,
    find_tensorflow,
    same_version,
)

_INSTALL = "Run: tfdist horovod install"
_FRAMEWORKS = ("TensorFlow", "PyTorch", "MXNet")
_CONTROLLERS = ("gloo", "mpi")
# MPI's launcher is a separate package from the library.
_NO_MPIRUN = "no mpirun on PATH, which starts processes for it"


@dataclass(frozen=True)
class Report:
    """The result of a check of Horovod; `problem` is None if it works."""

    horovod: Installed | None
    tensorflow: TensorFlow | None = None
    parts: tuple[str, ...] | None = None
    mpirun: str | None = None
    controller: str | None = None
    problem: str | None = None

    def lines(self) -> list[str]:
        """Return the lines of the report, without the problem."""
        if self.horovod is None:
            return []
        here = "none" if self.tensorflow is None else self.tensorflow.version
        rows = [
            (f"Horovod {self.horovod.version}", str(self.horovod.folder)),
            ("built for", f"TensorFlow {self.horovod.built_for or 'none'}"),
            ("installed", f"TensorFlow {here}"),
            ("frameworks", _marks(_FRAMEWORKS, self.horovod.frameworks)),
        ]
        if self.parts is not None:
            built = [PARTS[part] for part in self.parts]
            controllers = _marks([PARTS[part] for part in _CONTROLLERS], built)
            rows.append(("controllers", controllers))
            rows.append(("built in", _marks(list(PARTS.values()), built)))
            if "mpi" in self.parts:
                rows.append(("mpirun", self.mpirun or _NO_MPIRUN))
        if self.controller is not None:
            how = f"right, on two processes through {PARTS[self.controller]}"
            rows.append(("all-reduce", how))
        return [f"{name:<16}{text}" for name, text in rows]


def check(env: Mapping[str, str]) -> Report:
    """Check which parts Horovod was built with, and try it on two processes."""
    horovod = find_installed()
    try:
        tensorflow = find_tensorflow()
    except BuildError as error:
        return Report(horovod, problem=str(error))
    problem = mismatch(horovod, tensorflow)
    if problem is not None:
        return Report(horovod, tensorflow, problem=problem)
    mpirun = which("mpirun", path=env.get("PATH"))
    parts = None
    try:
        parts = probe(env)
        controller = try_all_reduce(parts, env)
    except BuildError as error:
        return Report(horovod, tensorflow, parts, mpirun, problem=str(error))
    return Report(horovod, tensorflow, parts, mpirun, controller)


def mismatch(horovod: Installed | None, tensorflow: TensorFlow) -> str | None:
    """Return why a Horovod does not fit a TensorFlow, or None if it does."""
    if horovod is None:
        return (
            f"Horovod must be installed. Received: an environment without. {_INSTALL}"
        )
    if horovod.built_for is None or "TensorFlow" not in horovod.frameworks:
        return (
            "Horovod must be built with its part for TensorFlow. Received: Horovod "
            f"{horovod.version} in {horovod.folder}, without. {_INSTALL}"
        )
    if not same_version(horovod.built_for, tensorflow.version):
        return (
            "Horovod must be built for the TensorFlow that is installed. Received: one "
            f"for {horovod.built_for}, beside TensorFlow {tensorflow.version}. "
            f"{_INSTALL}"
        )
    return None


def _marks(names: Sequence[str], present: Sequence[str]) -> str:
    """Return the names that are present, then the absent ones, in words."""
    there = ", ".join(name for name in names if name in present) or "none"
    absent = ", ".join(name for name in names if name not in present)
    return f"{there} (not {absent})" if absent else there


_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Ended:
    """The output of a program, and its exit code, None after a timeout."""

    code: int | None
    output: str

    def last_lines(self, count: int = 5) -> str:
        """Return the end of the output, indented."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return "\n".join(f"    {line}" for line in lines[-count:])


def run_child(
    command: Sequence[str], env: Mapping[str, str], *, timeout_seconds: float
) -> Ended:
    """Run a program in a new session, with a time limit."""
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, _end(process))
        except BaseException:
            _end(process)
            raise
    return Ended(process.returncode, output)


def _end(process: "subprocess.Popen[str]") -> str:
    """Terminate a program, then kill its session; return its output."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output


_PROBE_SECONDS = 120.0
_TRIAL_SECONDS = 180.0

# Horovod's parts, by the prefix of the function that reports each.
PARTS = {
    "gloo": "Gloo",
    "mpi": "MPI",
    "nccl": "NCCL",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "ddl": "DDL",
    "ccl": "oneCCL",
}

_PROBE = f"""
import json
import horovod.tensorflow as horovod
built = [n for n in {list(PARTS)} if getattr(horovod, n + "_built")()]
print("\\ntfdist-probe " + json.dumps(built), flush=True)
"""

# Each rank contributes its rank plus one, so the sum is 3.
_TRIAL = """
import horovod.tensorflow as horovod
import tensorflow as tf
horovod.init()
sent = tf.fill([1000], float(horovod.rank() + 1))
got = horovod.allreduce(sent, op=horovod.Sum, name="tfdist.trial")
low, high = float(tf.reduce_min(got)), float(tf.reduce_max(got))
print(f"\\ntfdist-trial {horovod.rank()} {horovod.size()} {low} {high}", flush=True)
horovod.shutdown()
"""
_RIGHT = {("0", "2", "3.0", "3.0"), ("1", "2", "3.0", "3.0")}


def probe(env: Mapping[str, str]) -> tuple[str, ...]:
    """Load Horovod in another process, and return its parts."""
    ended = run_child(
        [sys.executable, "-P", "-c", _PROBE],
        _environment(env),
        timeout_seconds=_PROBE_SECONDS,
    )
    found = re.search(r"^tfdist-probe (.*)$", ended.output, re.MULTILINE)
    if ended.code != 0 or found is None:
        raise BuildError(
            "Horovod must load with the TensorFlow that is installed. Received: "
            f"{_how(ended, _PROBE_SECONDS)} Build it again: "
            f"tfdist horovod install --force\n{ended.last_lines()}"
        )
    return tuple(json.loads(found[1]))


def try_all_reduce(parts: tuple[str, ...], env: Mapping[str, str]) -> str:
    """Run an all-reduce on two processes, on the CPU; return the controller."""
    controller = "gloo" if "gloo" in parts else "mpi"
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        program = Path(folder, "trial.py")
        program.write_text(_TRIAL)
        ended = run_child(
            [
                *(sys.executable, "-P", "-m", "horovod.runner.launch"),
                *("-np", "2", "-H", "localhost:2", "--disable-cache"),
                *(f"--{controller}", sys.executable, str(program)),
            ],
            _environment(env),
            timeout_seconds=_TRIAL_SECONDS,
        )
    if ended.code != 0 or not is_right(ended.output):
        raise BuildError(
            f"Two processes must add up through Horovod, on {PARTS[controller]}. "
            f"Received: {_how(ended, _TRIAL_SECONDS)} "
            f"{_advice(controller)}\n{ended.last_lines(12)}"
        )
    return controller


def is_right(output: str) -> bool:
    """Return whether both processes reported the right sum."""
    # mpirun may print the tag of the next line directly after a number.
    report = r"tfdist-trial (\d+) (\d+) ([\d.]+) ([\d.]+)"
    return set(re.findall(report, output)) == _RIGHT


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trial: CPU only, few log lines."""
    return {**env, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


def _how(ended: Ended, seconds: float) -> str:
    """Describe the end of a trial."""
    if ended.code is None:
        return f"no result within {seconds:.0f} s."
    if ended.code != 0:
        return f"exit code {ended.code}."
    return "another result than the right one."


def _advice(controller: str) -> str:
    """Return advice on the most frequent cause."""
    if controller == "mpi":
        return "Check that mpirun runs two processes here: mpirun -np 2 hostname"
    return (
        "If the lines below are about addresses or time, name the network interface: "
        "HOROVOD_GLOO_IFACE=lo tfdist horovod check"
    )
