"""The TensorFlow and the Horovod of this environment, and a trial of them.

Neither is imported here: two other processes try an all-reduce.
"""

import contextlib
import importlib
import importlib.util
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TextIO

from tfdist.failure import Failure

COULD_NOT_START = 2
# Distributions that provide TensorFlow.
_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-cpu-aws",
    "tensorflow-rocm",
    "tf-nightly",
    "tf-nightly-cpu",
)
# Horovod's parts, and class names that only a library with that part contains.
_NAMES_IN = {
    "Gloo": b"GlooController",
    "MPI": b"MPIController",
    "NCCL": b"NCCLAllreduce",
}


_TRIAL_SECONDS = 180.0
_GRACE_SECONDS = 5.0
_LAST_LINES = 12
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
_ADVICE = {
    "Gloo": "If the lines below are about addresses or time, name the network "
    "interface: HOROVOD_GLOO_IFACE=lo tfdist horovod check",
    "MPI": "Check that mpirun runs two processes here: mpirun -np 2 hostname",
}


class BuildError(Failure):
    """A failure to build Horovod or to run it."""

    exit_code = 1


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow, and the folder of its C++ headers."""

    version: str
    include: Path


@dataclass(frozen=True)
class Installed:
    """An installed Horovod, and the TensorFlow version that it was built for."""

    version: str
    folder: Path
    built_for: str | None


def tensorflow_version() -> str | None:
    """Return the version of the installed TensorFlow, or None."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def find_tensorflow() -> TensorFlow:
    """Find the installed TensorFlow, or raise BuildError."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("tensorflow")
    version = tensorflow_version()
    if spec is None or not spec.submodule_search_locations or version is None:
        raise BuildError(
            "TensorFlow must be installed before Horovod, which is built for it. "
            "Received: an environment without it. Run: pip install tensorflow",
            COULD_NOT_START,
        )
    include = Path(spec.submodule_search_locations[0]) / "include"
    if not include.is_dir():
        raise BuildError(
            "TensorFlow must be installed with its C++ headers. Received: TensorFlow "
            f"{version}, without {include}. "
            "Install the package of PyPI: pip install --force-reinstall tensorflow",
            COULD_NOT_START,
        )
    return TensorFlow(version, include)


def find_installed() -> Installed | None:
    """Find the installed Horovod, or return None."""
    importlib.invalidate_caches()
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file("horovod")))
    try:
        built_for = json.loads((folder / "metadata.json").read_text())["tensorflow"]
    except (OSError, ValueError, KeyError):
        built_for = None
    return Installed(distribution.version, folder, built_for)


def parts_in(folder: Path) -> tuple[str, ...] | None:
    """Return the parts of Horovod's library for TensorFlow, or None without one."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    try:
        with (
            open(folder / f"tensorflow/mpi_lib{suffix}", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return tuple(
                part for part, name in _NAMES_IN.items() if content.find(name) >= 0
            )
    except (OSError, ValueError):  # An empty file cannot be mapped.
        return None


def check(env: Mapping[str, str], *, stream: TextIO) -> None:
    """Print Horovod's parts and try it on two processes; BuildError if it fails."""
    tensorflow, horovod = find_tensorflow(), find_installed()

    def row(name: str, text: str) -> None:
        print(f"{name:<16}{text}", file=stream, flush=True)

    if horovod is not None:
        row(f"Horovod {horovod.version}", str(horovod.folder))
        row("built for", f"TensorFlow {horovod.built_for or 'none'}")
        row("installed", f"TensorFlow {tensorflow.version}")
    parts = check_fit(horovod, tensorflow)
    row("built in", ", ".join(parts))
    controller = try_all_reduce(parts, env)
    row("all-reduce", f"right, on two processes through {controller}")


def check_fit(horovod: Installed | None, tensorflow: TensorFlow) -> tuple[str, ...]:
    """Return Horovod's parts; raise BuildError if it does not fit TensorFlow."""
    parts = None if horovod is None else parts_in(horovod.folder)
    if horovod is None:
        what, received = "installed", "an environment without"
    elif horovod.built_for is None or not parts:
        what = "built with its part for TensorFlow"
        received = f"Horovod {horovod.version} in {horovod.folder}, without"
    elif _normalized(horovod.built_for) != _normalized(tensorflow.version):
        what = "built for the TensorFlow that is installed"
        received = f"one for {horovod.built_for}, and TensorFlow {tensorflow.version}"
    else:
        return parts
    raise BuildError(
        f"Horovod must be {what}. Received: {received}. Run: tfdist horovod install"
    )


def _normalized(version: str) -> str:
    """Return a version of TensorFlow in pip's spelling."""
    return version.replace("-dev", ".dev").replace("-", "")


def try_all_reduce(parts: Sequence[str], env: Mapping[str, str]) -> str:
    """Run an all-reduce on two processes, on the CPU; return the controller."""
    controller = "Gloo" if "Gloo" in parts else "MPI"
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        program = Path(folder, "trial.py")
        program.write_text(_TRIAL)
        command = [
            *(sys.executable, "-P", "-m", "horovod.runner.launch"),
            *("-np", "2", "-H", "localhost:2", "--disable-cache"),
            *(f"--{controller.lower()}", sys.executable, str(program)),
        ]
        trial_env = {**env, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        code, output = run_child(command, trial_env, timeout_seconds=_TRIAL_SECONDS)
    # mpirun may print the tag of the next line directly after a number.
    report = r"tfdist-trial (\d+) (\d+) ([\d.]+) ([\d.]+)"
    if code == 0 and set(re.findall(report, output)) == _RIGHT:
        return controller
    if code is None:
        received = f"no result within {_TRIAL_SECONDS:.0f} s"
    else:
        received = f"exit code {code}" if code else "a wrong or missing sum"
    lines = [line for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    raise BuildError(
        f"Two processes must add up through Horovod, on {controller}. "
        f"Received: {received}. {_ADVICE[controller]}"
        + "".join(f"\n    {line}" for line in lines)
    )


def run_child(
    command: Sequence[str], env: Mapping[str, str], *, timeout_seconds: float
) -> tuple[int | None, str]:
    """Run a program; return its exit code, None after a timeout, and its output."""
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
            return process.returncode, output
        except subprocess.TimeoutExpired:
            _end(process)
            return None, process.communicate()[0]
        except BaseException:
            _end(process)
            raise


def _end(process: "subprocess.Popen[str]") -> None:
    """Terminate a program, then kill its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
