"""The equality matrix: the processes in which rows run."""

import contextlib
import io
import pickle
import tempfile
from multiprocessing.pool import ThreadPool

from equality_rows import Failure, OutOfStep, rows_file, run_rows

import tfdist

PLAIN = "plain"
# A row that leaves the ranks out of step costs a cluster; so many are paid for.
CLUSTERS = 8
# A cluster that hangs is ended, and one on a machine with much else to do is not.
SECONDS_TO_START, SECONDS_OF_A_ROW = 120, 20
# Ranks wait for each other. Meanwhile another cluster has the cores.
AT_ONCE = 2


def run_columns(rows_of):
    """Run rows in all their columns; return by column what each rank ended with.

    Args:
        rows_of: The rows to run, by column: the name of the module and that of the row
            for each. A column is "plain", a number of processes that TensorFlow joins,
            or such as "horovod-2".
    """
    # Those that take longest first, so that none is left to run alone.
    columns = sorted(rows_of, key=lambda column: -_size(column) * len(rows_of[column]))
    # Its threads are no reason for Python to stay: Ctrl-C ends it, and the clusters.
    with ThreadPool(AT_ONCE) as pool:
        ended = pool.map(
            lambda column: _run_column(rows_of[column], column), columns, chunksize=1
        )
    return dict(zip(columns, ended, strict=True))


def _size(column):
    """Return how many processes a column has."""
    return 1 if column == PLAIN else int(str(column).rpartition("-")[2])


def _run_column(rows, column):
    """Run rows in as many clusters as they need; what each rank has, by row."""
    ended = [{} for _ in range(_size(column))]
    left = list(rows)
    for _ in range(CLUSTERS):
        result = _run_cluster(left, column, ended)
        if result.problem and not ended[0]:
            raise tfdist.testing.ClusterError(result)
        done = [row for row in left if all(row in by_row for by_row in ended)]
        left = left[len(done) :]
        if not left:
            return ended
        last = [by_row[done[-1]] for by_row in ended] if done else []
        if not any(isinstance(outcome, OutOfStep) for outcome in last):
            _note_end(ended, left.pop(0), result)
    for row in left:
        for by_row in ended:
            by_row[row] = Failure(f"not run: {CLUSTERS} clusters ended before it")
    return ended


def _run_cluster(rows, column, ended):
    """Run rows in new processes, as far as they come; add to what each rank has."""
    engine = str(column).rpartition("-")[0] or "tensorflow"
    with tempfile.TemporaryDirectory() as folder:
        result = tfdist.testing.cluster(
            run_rows,
            size=len(ended),
            args=(rows, folder, column == PLAIN),
            timeout_seconds=SECONDS_TO_START + SECONDS_OF_A_ROW * len(rows),
            check=False,
            collective=engine,
        )
        for rank, by_row in enumerate(ended):
            by_row.update(_read(rows_file(folder, rank)))
    return result


def _note_end(ended, row, result):
    """Note for every rank how its process ended in the midst of a row."""
    for rank, by_row in enumerate(ended):
        by_row[row] = Failure(
            f"{by_row.get(row, '')}\n{result.problem}\n{result.logs[rank][-3000:]}"
        )


def _read(file):
    """Return what a rank has left, up to where it stopped."""
    outcomes = {}
    content = io.BytesIO(file.read_bytes() if file.exists() else b"")
    # To the end, or to where a rank that was ended has stopped.
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            row, outcome = pickle.load(content)
            outcomes[row] = outcome
    return outcomes
