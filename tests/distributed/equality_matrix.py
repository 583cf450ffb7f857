"""The machine of the equality matrix: rows run in processes, and compared with one.

A row is a function of a strategy that trains in some way and returns what must be
equal: dictionaries, lists, arrays, numbers, strings. It runs in plain Keras on one
process, which is the truth, and under tfdist on several. Two keys of what it returns
are special: what stands under "agreed" must be equal among the ranks, but may be
another than on one process; what stands under "by_rank" may be anything.

The rows of a module share their processes, because starting those takes longer than
training. A row that raises does not disturb the others, as long as all ranks raise. If
they do not, the ranks are out of step; the rows after it then get new processes.
"""

import contextlib
import io
import os
import pickle
import tempfile
import traceback
from pathlib import Path

import pytest
from equality_comparison import differences, differing_bits
from packaging.version import Version

import tfdist

PLAIN = "plain"
# Where rows run beside: a number of processes, joined by TensorFlow, or on Horovod.
COLUMNS = (
    2,
    3,
    *(
        pytest.param(name, marks=pytest.mark.requires("horovodrun"))
        for name in ("horovod-2", "horovod-3")
    ),
)
TOLERANCES = {"float64": 1e-6, "float32": 1e-5}
# A row that leaves the ranks out of step costs a cluster; so many are paid for.
CLUSTERS = 8
SECONDS = 280


class Failure(str):
    """The traceback of a row that raised."""


class OutOfStep(Failure):
    """That of a row in which not all ranks raised, or not at the same call."""


class Absent(Exception):
    """The installed Keras is an older one, which lacks what a row is about."""


class Skipped(str):
    """What it lacks."""


class Cells:
    """What the rows of a module end with, in plain Keras and on several processes.

    Args:
        run: A function at the top of that module, of what `run_rows` takes after its
            rows, and which hands it on with them.
        names: The names of the rows that are wanted.
        columns: Where to run them: "plain", or as in `COLUMNS`.
    """

    def __init__(self, run, names, columns):
        self._outcomes = {column: _run_column(run, names, column) for column in columns}

    def by_rank(self, row, column):
        """Return what each rank ended with; fail if one of them raised."""
        outcomes = [ended[row] for ended in self._outcomes[column]]
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, Skipped):
                pytest.skip(outcome)
            if isinstance(outcome, Failure):
                where = f"{row!r} raised on rank {rank} of {column}"
                raise AssertionError(f"{where}:\n{outcome}")
        return outcomes

    def check(self, row, column):
        """Fail unless all ranks end with the same bits, and as one process."""
        (right,) = self.by_rank(row, PLAIN)
        outcomes = self.by_rank(row, column)
        wrong = differing_bits(outcomes)
        wrong += differences(outcomes[0], right, TOLERANCES[right["floatx"]])
        if wrong:
            lines = [f"{row!r} on {column}:", *wrong]
            raise AssertionError("\n".join(lines))


def of_keras(package, name):
    """Return a class of Keras, e.g. ("optimizers", "Adam"), that an older one lacks.

    The newest Keras must have it: a row that is skipped there would be so for ever.
    """
    import keras

    from tfdist.compat.keras.versions import NEWEST

    classes = getattr(keras, package)
    is_older = Version(keras.__version__).release[:2] < NEWEST
    if is_older and not hasattr(classes, name):
        raise Absent(f"Keras {keras.__version__} has no {package}.{name}")
    return getattr(classes, name)


def run_rows(rows, names, folder, is_plain):
    """Run rows in this process; leave what each ends with in a file of this rank.

    Args:
        rows: All rows of the module, by name.
        names: Which of them to run.
        folder: Where the file is; the working directory of the rows too, which all
            ranks share.
        is_plain: Whether to run them in plain Keras instead of under tfdist.
    """
    import tensorflow as tf

    if is_plain:
        strategy = tf.distribute.get_strategy()
    else:
        strategy = tfdist.strategies.AllReduceStrategy(timeout_seconds=60)
    os.chdir(folder)
    with open(_file(folder, tfdist.rank()), "ab") as file:
        for name in names:
            outcome = _run_row(rows[name], strategy)
            pickle.dump((name, outcome), file)
            file.flush()
            if not is_plain:
                _meet(strategy, name, outcome, file)


def _meet(strategy, name, outcome, file):
    """End a row together; ranks that are elsewhere meet another call, and raise."""
    try:
        strategy.collective.exchange("the end of a row", name)
    except Exception:
        own = outcome if isinstance(outcome, Failure) else "This rank went through."
        text = f"{own}\nThe ranks are out of step:\n{traceback.format_exc()}"
        pickle.dump((name, OutOfStep(text)), file)
        raise


def _run_row(row, strategy):
    """Run a row in a process as fresh as it can be made."""
    import keras

    keras.backend.clear_session()
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    try:
        return {**row(strategy), "floatx": keras.config.floatx()}
    except Absent as absent:
        return Skipped(absent)
    except Exception:
        return Failure(traceback.format_exc())


def _run_column(run, names, column):
    """Run rows in as many clusters as they need; what each rank has, by name."""
    is_plain = column == PLAIN
    engine, _, number = str(column).rpartition("-")
    size = 1 if is_plain else int(number)
    ended = [{} for _ in range(size)]
    left = list(names)
    for _ in range(CLUSTERS):
        with tempfile.TemporaryDirectory() as folder:
            result = tfdist.testing.cluster(
                run,
                size=size,
                args=(left, folder, is_plain),
                timeout_seconds=SECONDS,
                check=False,
                collective=engine or "tensorflow",
            )
            for rank, by_name in enumerate(ended):
                by_name.update(_read(_file(folder, rank)))
        if result.problem and not ended[0]:
            raise tfdist.testing.ClusterError(result)
        done = [name for name in left if all(name in by_name for by_name in ended)]
        left = left[len(done) :]
        if not left:
            return ended
        last = [by_name[done[-1]] for by_name in ended] if done else []
        if not any(isinstance(outcome, OutOfStep) for outcome in last):
            _note_end(ended, left.pop(0), result)
    for name in left:
        for by_name in ended:
            by_name[name] = Failure(f"not run: {CLUSTERS} clusters ended before it")
    return ended


def _note_end(ended, name, result):
    """Note for every rank how its process ended in the midst of a row."""
    for rank, by_name in enumerate(ended):
        by_name[name] = Failure(
            f"{by_name.get(name, '')}\n{result.problem}\n{result.logs[rank][-3000:]}"
        )


def _read(file):
    """Return what a rank has left, up to where it stopped."""
    outcomes = {}
    content = io.BytesIO(file.read_bytes() if file.exists() else b"")
    # To the end, or to where a rank that was ended has stopped.
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            name, outcome = pickle.load(content)
            outcomes[name] = outcome
    return outcomes


def _file(folder, rank):
    """Return the file in which a rank leaves what its rows end with."""
    return Path(folder) / f"rank.{rank}.rows"
