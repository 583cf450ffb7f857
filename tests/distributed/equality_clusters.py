"""The equality matrix: the processes in which rows run."""

import contextlib
import io
import pickle
import tempfile
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

from equality_rows import Failure, OutOfStep, rows_file, run_rows

import tfdist


class Place(NamedTuple):
    """Where a row runs: on how many processes and devices, and what joins them."""

    size: int
    collective: str
    strategy: str = "AllReduceStrategy"
    devices: int = 1
    virtual_ranks: int | None = None
    # Whether collectives of TensorFlow run in the order and the types of GPUs.
    is_as_on_gpus: bool = False

    def __str__(self):
        devices = f", {self.strategy} on {self.devices} devices each"
        parts = f", in {self.virtual_ranks} parts" if self.virtual_ranks else ""
        devices = devices if self.devices > 1 else parts
        order = ", as on GPUs" if self.is_as_on_gpus else ""
        return f"{self.size} ({self.collective}{devices}{order})"

    @property
    def of_one(self):
        """Where one process ends as rows must end here; with parts, to the bit."""
        if self.virtual_ranks is None or self == ALONE_IN_PARTS:
            return PLAIN
        return ALONE_IN_PARTS


# One process, and no tfdist.
PLAIN = Place(1, "plain", "")
VIRTUAL_RANKS = 8
ALONE_IN_PARTS = Place(1, "tensorflow", virtual_ranks=VIRTUAL_RANKS)
# A row that leaves the ranks out of step costs a cluster; so many are paid for.
CLUSTERS = 8
# A cluster that hangs is ended, and one on a machine with much else to do is not.
SECONDS_TO_START, SECONDS_OF_A_ROW = 600, 60
# Ranks wait for each other. Meanwhile other clusters, and other tests, have the cores.
AT_ONCE = 2


def run_places(rows_of):
    """Run rows in all their places; return by place what each rank ended with.

    Args:
        rows_of: The rows to run, by `Place`: the name of the module and that of the row
            for each.
    """
    # Those of most processes last: they keep the cores busy even when left alone.
    places = sorted(rows_of, key=lambda place: place.size * place.devices)
    # Its threads are no reason for Python to stay: Ctrl-C ends it, and the clusters.
    with ThreadPool(AT_ONCE) as pool:
        ended = pool.map(
            lambda place: _run_place(rows_of[place], place), places, chunksize=1
        )
    return dict(zip(places, ended, strict=True))


def _run_place(rows, place):
    """Run rows in as many clusters as they need; what each rank has, by row."""
    ended = [{} for _ in range(place.size)]
    left = list(rows)
    for _ in range(CLUSTERS):
        result = _run_cluster(left, place, ended)
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


def _run_cluster(rows, place, ended):
    """Run rows in new processes, as far as they come; add to what each rank has."""
    with tempfile.TemporaryDirectory() as folder:
        result = tfdist.testing.cluster(
            run_rows,
            size=place.size,
            args=(rows, folder, place),
            timeout_seconds=SECONDS_TO_START + SECONDS_OF_A_ROW * len(rows),
            check=False,
            collective="tensorflow" if place == PLAIN else place.collective,
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
