"""Calling a function on the ranks of a job that Horovod's own runner starts."""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tfdist.launching.function.child import load_function, reference_to

RUNNER = (sys.executable, "-m", "horovod.runner.launch", "--gloo")
# A starved rank may come later than the 30 s for which Horovod waits.
PATIENCE = {"HOROVOD_START_TIMEOUT": "300", "HOROVOD_GLOO_TIMEOUT_SECONDS": "300"}
# mpirun refuses root, and more processes than cores, unless told otherwise.
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


class JobError(AssertionError):
    """A job whose ranks did not all return; the text is all that they printed."""


def run(
    function,
    size=2,
    args=(),
    timeout_seconds=1200,
    launcher=RUNNER,
):
    """Call `function(*args)` on every rank and return the values, by rank.

    The function stands at the top of a module, and itself calls `hvd.init()`. Starting
    costs seconds, so one function should make many checks. Give `launcher=MPIRUN` for
    Horovod's MPI controller.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-horovod-") as name:
        folder = Path(name)
        with open(folder / "job.pickle", "wb") as job:
            pickle.dump((sys.path, reference_to(function)), job)
            pickle.dump(tuple(args), job)
        command = [*launcher, "-np", str(size), sys.executable, "-P", __file__, name]
        # The runner ends its ranks itself when it is asked to end.
        done = subprocess.run(
            ["timeout", "-k", "15", str(timeout_seconds), *command],
            env={
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **PATIENCE,
                **os.environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
        )
        files = [folder / f"rank.{rank}.pickle" for rank in range(size)]
        if done.returncode != 0 or not all(file.exists() for file in files):
            end = f"exit code {done.returncode} (124: the time is up)"
            raise JobError(f"{' '.join(command)}: {end}\n{done.stdout}")
        return [pickle.loads(file.read_bytes()) for file in files]


def main(folder):
    """Call the function on this rank and leave its value in a file."""
    rank = os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    try:
        with open(folder / "job.pickle", "rb") as job:
            path, reference = pickle.load(job)
            sys.path[:] = path
            function = load_function(*reference)
            arguments = pickle.load(job)
        value = pickle.dumps(function(*arguments))
    except Exception:
        print(f"rank {rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return 1
    (folder / f"rank.{rank}.pickle").write_bytes(value)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
