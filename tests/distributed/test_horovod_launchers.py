"""One program under every launcher that Horovod's users have."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from horovod_jobs import MPIRUN, PATIENCE
from launcher import TFDIST

pytestmark = [
    pytest.mark.new_processes,
    pytest.mark.requires("horovodrun", "mpirun"),
    pytest.mark.slow,
]

SECONDS = 1200
HOROVODRUN = (str(Path(sys.executable).with_name("horovodrun")), "-np", "2")
LAUNCHERS = {
    "horovodrun": (*HOROVODRUN, "--gloo", sys.executable),
    "horovodrun --mpi": (*HOROVODRUN, "--mpi", sys.executable),
    "mpirun": (*MPIRUN, "-np", "2", sys.executable),
    "tfdist run": (*TFDIST, "-np", "2", "--collective", "horovod"),
}
# Who has started the processes, as they see it.
KNOWN_AS = {"horovodrun --mpi": "mpirun"}
LINE = "tfdist: {} has started 2 processes; the collectives of Horovod join them."

PROGRAM = """
import hashlib, json, sys
sys.modules["mpi4py"] = None  # MPI would come first under mpirun.
import tfdist
strategy = tfdist.strategies.AllReduceStrategy()
import keras
import numpy as np
x = np.random.default_rng(3).normal(size=(21, 4))
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
model.fit(x, x[:, :1], batch_size=4, verbose=0)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print(json.dumps({
    "rank": tfdist.rank(), "size": tfdist.size(),
    "collective": type(strategy.collective).__name__,
    "weights": hashlib.sha256(weights).hexdigest(),
}), flush=True)
"""
# As on a machine where Horovod is not installed.
HIDDEN = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name == "horovod" else find(name, *rest)
)
"""


def run(command, tmp_path, program):
    """Run a program under a launcher; return the exit code and all that was printed."""
    script = tmp_path / "train.py"
    script.write_text(program)
    with subprocess.Popen(
        [*command, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={"OMP_NUM_THREADS": "1", **PATIENCE, **os.environ},
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            # End what is left when the time is up.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_same_program_trains_under(launcher, tmp_path):
    code, output = run(LAUNCHERS[launcher], tmp_path, PROGRAM)

    assert code == 0, output
    found = [json.loads(text) for text in re.findall(r'\{"rank".*?\}', output)]
    assert sorted(rank["rank"] for rank in found) == [0, 1], output
    assert {rank["size"] for rank in found} == {2}
    assert {rank["collective"] for rank in found} == {"HorovodCollective"}
    assert len({rank["weights"] for rank in found}) == 1
    line = LINE.format(KNOWN_AS.get(launcher, launcher))
    assert output.count(line) == 1, output


def test_without_horovod_mpirun_starts_no_separate_trainings(tmp_path):
    # One that ends would end the other before it has told its reason.
    patient = ["--mca", "orte_abort_non_zero_exit", "0"]
    command = (*MPIRUN, *patient, "-np", "2", sys.executable)

    code, output = run(command, tmp_path, HIDDEN + PROGRAM)

    assert code != 0
    assert '"weights"' not in output
    for rank in (0, 1):
        message = (
            "ValueError: Nothing connects the processes that mpirun has started. "
            f"Received: rank {rank} of 2 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
            "OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE), without "
            "TF_CONFIG and without Horovod and mpi4py. Run pip install 'tfdist[mpi]', "
            "or start the program with `tfdist run`."
        )
        assert message in output, output
