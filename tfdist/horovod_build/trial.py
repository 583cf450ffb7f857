"""Whether an installed Horovod loads, and whether two processes can use it."""

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tfdist.horovod_build.child import Ended, run_child
from tfdist.horovod_build.errors import BuildError

_PROBE_SECONDS = 120.0
_TRIAL_SECONDS = 180.0

# What Horovod can say of how it was built, by the name of its function.
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

# Each rank contributes its number plus one, so the sum is 3.
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
    """Load Horovod in another process, and ask it what is built in.

    Args:
        env: The environment of this process.

    Returns:
        Keys of `PARTS`.

    Raises:
        BuildError: If it does not load.
    """
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
    """Let two processes add up through Horovod, started by Horovod's own runner.

    They compute on the CPU: two processes need not have two GPUs.

    Args:
        parts: What is built in, as `probe` returns it.
        env: The environment of this process.

    Returns:
        By which of its parts the processes found each other: "gloo" or "mpi".

    Raises:
        BuildError: If there is no result, or a wrong one.
    """
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
    """Tell whether both processes have reported the right sum.

    Args:
        output: What they have printed.

    Returns:
        Whether they have.
    """
    # mpirun may put the tag of the next line directly behind a number.
    report = r"tfdist-trial (\d+) (\d+) ([\d.]+) ([\d.]+)"
    return set(re.findall(report, output)) == _RIGHT


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trial: on the CPU, and without chatter."""
    return {**env, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


def _how(ended: Ended, seconds: float) -> str:
    """Say how a trial ended."""
    if ended.code is None:
        return f"no result within {seconds:.0f} s."
    if ended.code != 0:
        return f"exit code {ended.code}."
    return "another result than the right one."


def _advice(controller: str) -> str:
    """Say what stands in the way most often."""
    if controller == "mpi":
        return "Check that mpirun runs two processes here: mpirun -np 2 hostname"
    return (
        "If the lines below are about addresses or time, name the network interface: "
        "HOROVOD_GLOO_IFACE=lo tfdist horovod check"
    )
