"""The equality matrix sees what it is there to see: planted faults."""

import os

import numpy as np
import pytest
from equality_clusters import PLAIN, Place
from equality_matrix import place_of

import tfdist

ENGINES = ["tensorflow", "mpi", "horovod"]
VALUE = np.array([1.0, np.nan, 3.0])


def meet(strategy):
    """Do something that needs all ranks."""
    if tfdist.size() > 1:
        strategy.collective.barrier("a row")
    return {"weights": [VALUE], "history": {"count": 3}}


def rounded(strategy):
    return {"weights": VALUE * (1 + 1e-9 * (tfdist.size() - 1))}


def other_than_one_process(strategy):
    return {"weights": [VALUE * (1 + 1e-5 * (tfdist.size() - 1))]}


def other_count(strategy):
    return {"count": tfdist.size()}


def other_bits(strategy):
    return {"agreed": {"weights": VALUE * (1 + 1e-15 * tfdist.rank())}}


def one_key_less(strategy):
    return {"history": {} if tfdist.size() > 1 else {"loss": 1.0}}


def raises_everywhere(strategy):
    raise ValueError("refused")


def raises_on_one_rank(strategy):
    if tfdist.rank() == 1:
        raise ValueError("refused on one rank")
    return meet(strategy)


# The three engines join rows in turn. A row that raises and the one that follows it in
# the same processes are therefore three apart.
ROWS = {
    "equal": meet,
    "rounded": rounded,
    "raises everywhere": raises_everywhere,
    "other than one process": other_than_one_process,
    "other count": other_count,
    "equal after a row that raised": meet,
    "raises on one rank": raises_on_one_rank,
    "other bits": other_bits,
    "one key less": one_key_less,
    "equal after ranks were out of step": meet,
}


@pytest.mark.parametrize("column", [2])
@pytest.mark.parametrize("row", [row for row in ROWS if row.startswith("equal")])
def test_equal_rows_pass(cells, column, row):
    cells.check(row, column)


@pytest.mark.parametrize(("row", "column"), [("rounded", 2)])
def test_rounding_passes(cells, column, row):
    cells.check(row, column)


@pytest.mark.parametrize("column", [2])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("other than one process", r"/weights/0: 3.00003, and 3.0 on one process"),
        ("other count", r"/count: 2, and 1 on one process"),
        ("other bits", r"rank 1 has other bits than rank 0 in /agreed/weights"),
        ("one key less", r"/history/loss is on one side only"),
        (
            "raises everywhere",
            r"raised on rank 0 of 1 \(plain\):[\s\S]*ValueError: refused",
        ),
        ("raises on one rank", r"The ranks are out of step:[\s\S]*Error"),
    ],
)
def test_planted_faults_fail(cells, column, row, message):
    with pytest.raises(AssertionError, match=message):
        cells.check(row, column)


THREE_AS_ON_GPUS = (3, "tensorflow", "AllReduceStrategy", 1, None, True)


@pytest.mark.parametrize(
    ("row", "column", "place"),
    [
        ("first", 2, (2, "horovod")),
        ("first", 3, THREE_AS_ON_GPUS),
        ("second", 2, (2, "tensorflow")),
        ("second", 3, (3, "mpi")),
        ("third", 2, (2, "mpi")),
        ("second", 1, (1, "tensorflow")),
        ("second", PLAIN, (1, "plain", "")),
        ("first", "mirrored", (1, "tensorflow", "MirroredStrategy", 2)),
        ("third", "workers", (2, "tensorflow", "MultiWorkerMirroredStrategy", 2)),
    ],
)
def test_the_collectives_join_rows_in_turn(row, column, place):
    rows = ["first", "second", "third"]

    assert place_of(rows, row, column, ENGINES) == Place(*place)


@pytest.mark.parametrize(("row", "column"), [("equal", 2)])
def test_in_ci_the_matrix_needs_horovod(cells, column, row, request):
    needed = {
        command
        for marker in request.node.iter_markers("requires")
        for command in marker.args
    }

    assert needed == ({"horovodrun"} if os.environ.get("CI") == "true" else set())
