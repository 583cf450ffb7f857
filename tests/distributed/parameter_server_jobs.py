"""Calling a function in every process of a job with parameter servers.

Starting a job costs seconds, so the rows of a module share one: as in the equality
matrix, whose rows these are, a row is a function of a strategy that returns what must
be equal. Only the chief comes to them.
"""

import os
import pickle
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import tfdist
from tfdist.cluster import detect
from tfdist.launching.function.child import load_function, reference_to
from tfdist.launching.job import Job
from tfdist.launching.output import Output
from tfdist.launching.plan import plan_here
from tfdist.launching.runner import run as launch

# Each of these processes would take all cores, and wait for the others.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}


class JobError(AssertionError):
    """A job whose chief did not return; the text is all that was printed."""


class Failure(str):
    """The traceback of a row that raised."""


def run(function, *args, workers=2, ps=1, timeout_seconds=1200, restarts=3):
    """Call `function(*args)` in every process, and return the chief's value.

    The function stands at the top of a module, and itself makes the strategy. With
    `workers=None` it is called in one process that belongs to no job. However the job
    ends, none of its processes may be left.
    """
    roles = {"size": 1} if workers is None else {"workers": workers, "ps": ps}
    with tempfile.TemporaryDirectory(prefix="tfdist-servers-") as name:
        folder = Path(name)
        with open(folder / "job.pickle", "wb") as job:
            pickle.dump((sys.path, reference_to(function)), job)
            pickle.dump(args, job)
        specs = plan_here(
            Job(
                (sys.executable, "-P", __file__, name),
                bind_to="none",
                env=ENVIRONMENT,
                **roles,
            )
        )
        result = launch(
            specs,
            output=Output(console=False, directory=folder),
            timeout_seconds=timeout_seconds,
            restarts=restarts,
        )
        deadline = time.monotonic() + 60
        while left := [file.stem for file in folder.glob("*.pid") if is_running(file)]:
            # What has ended is collected a moment later.
            assert time.monotonic() < deadline, f"left behind: {left}"
            threading.Event().wait(0.02)
        file = folder / "value.pickle"
        if result.exit_code or not file.exists():
            logs = [
                f"{log.name}:\n{log.read_text(errors='replace')}"
                for log in sorted(folder.glob("*.log"))
            ]
            raise JobError("\n".join([result.headline(), *logs]))
        return pickle.loads(file.read_bytes())


def run_rows(rows, names, **options):
    """Run rows under parameter servers, or in plain Keras if there are no options.

    Args:
        rows: All rows of a module, by name.
        names: Which of them to run.
        **options: Of `ParameterServerStrategy`.

    Returns:
        What each ended with, by name.
    """
    import tensorflow as tf

    if options:
        strategy = tfdist.strategies.ParameterServerStrategy(**options)
    else:
        strategy = tf.distribute.get_strategy()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        return {name: run_row(rows[name], strategy) for name in names}


def run_row(row, strategy):
    """Run a row in a process as fresh as it can be made."""
    import keras

    keras.backend.clear_session()
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    try:
        return {**row(strategy), "floatx": keras.config.floatx()}
    except Exception:
        return Failure(traceback.format_exc())


def is_running(file):
    """Say whether the process that has left its number in a file has not ended."""
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def succeeded(rows, name):
    """Return what a row ended with; fail if it raised."""
    assert not isinstance(rows[name], Failure), rows[name]
    return rows[name]


def pid_of(task):
    """Return the process id of a task of this job, such as "worker 1", on the chief."""
    return int((Path(sys.argv[1]) / f"{task}.pid").read_text())


def main(folder):
    """Call the function, and leave the value where there is one."""
    cluster = detect()
    if cluster is not None:
        # Whoever reads it finds a whole number.
        file = folder / f"{os.getpid()}.new"
        file.write_text(str(os.getpid()))
        file.replace(folder / f"{cluster.task}.pid")
    with open(folder / "job.pickle", "rb") as job:
        path, reference = pickle.load(job)
        sys.path[:] = path
        function = load_function(*reference)
        arguments = pickle.load(job)
    value = pickle.dumps(function(*arguments))
    (folder / "value.pickle").write_bytes(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
