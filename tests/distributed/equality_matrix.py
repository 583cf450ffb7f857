"""The equality matrix: rows that train in some way, on several processes as on one.

A row is a function of a strategy that trains in some way and returns what must be
equal: dictionaries, lists, arrays, numbers, strings. It runs in plain Keras on one
process, which is the truth, and under tfdist on several. Two keys of what it returns
are special: what stands under "agreed" must be equal among the ranks, but may be
another than on one process; what stands under "by_rank" may be anything.

A module of the matrix holds its rows by name in `ROWS`, and its tests take the fixture
`cells`. To add a row, add it there. In `make test` a quick row runs in one place: on
two or three processes, on two devices of one, with central storage or on two devices of
each of two processes, in turn. In `make test-all` each row runs in two: on processes,
and on devices or on more processes; a variant of another row in one; with
TFDIST_EVERY_ROW=1 everywhere. TensorFlow, MPI and Horovod join the processes in turn;
TensorFlow joins three in the order and by the types that it has on GPUs. `make test`
joins three by MPI only: few rows have such a turn, and processes take longer to start
than a few rows to train. Little of a row depends on what joins them, and that has tests
of its own on two and three of each. Horovod has no turn if not installed.

In the columns `IN_PARTS` the strategy has virtual ranks. On one process such a row is
compared with plain Keras, on more with that one process: to the bit.

Rows share their processes, also those of several modules, because starting those takes
longer than training. A row that raises does not disturb the others, as long as all
ranks raise. If they do not, the ranks are out of step; the rows after it then get new
processes.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from equality_clusters import PLAIN, VIRTUAL_RANKS, Place, run_places
from equality_comparison import differences, differing_bits
from equality_rows import Failure, Skipped

# On how many processes rows run, beside plain Keras.
COLUMNS = (2, 3)
# What `make test` leaves to `make test-all`.
SLOW = (pytest.mark.slow,)
# What joins them in turn. Horovod is where the marker `requires` looks for it.
COLLECTIVES = ["tensorflow", "mpi"]
if shutil.which("horovodrun", path=os.path.dirname(sys.executable)):
    COLLECTIVES.append("horovod")
# Where rows run on several devices: of one process, and of each of several, in turn.
DEVICES = {
    "mirrored": [Place(1, "tensorflow", "MirroredStrategy", 2)],
    "central": [Place(1, "tensorflow", "CentralStorageStrategy", 2)],
    "workers": [
        Place(2, "tensorflow", "MultiWorkerMirroredStrategy", 2),
        Place(3, "tensorflow", "MultiWorkerMirroredStrategy", 1),
        Place(2, "mpi", "MultiWorkerMirroredStrategy", 1),
        Place(3, "tensorflow", "MultiWorkerMirroredStrategy", 2),
    ],
}
# On how many processes rows run in parts, by the name of the column.
IN_PARTS = {f"{size} in parts": size for size in (1, 4, 8)}
TOLERANCES = {"float64": 1e-6, "float32": 1e-5}
# The column of each row in `make test`, in turn, and the other one in `make test-all`;
# the other way round where few rows have the place of the first. Columns of three are
# at a distance that no engine's turns divide.
TURNS = (
    (2, "mirrored"),
    ("mirrored", 3),
    ("workers", 2),
    ("central", 2),
    (3, "mirrored"),
    (2, "mirrored"),
    (2, "mirrored"),
    ("mirrored", 2),
)
# Whether each row runs in every column.
EVERY_ROW = "TFDIST_EVERY_ROW" in os.environ
# Processes take seconds to start, and keep up to 5 MB of each row. Those of plain Keras
# run all rows of a batch, the others half of them.
ROWS_OF_A_BATCH = 160


class Matrix:
    """What the chosen tests need of the matrix; run when first asked for.

    Args:
        items: The chosen tests, as pytest has them.
    """

    def __init__(self, items):
        self._wanted = {}
        for item in items:
            if "cells" in getattr(item, "fixturenames", ()):
                self._want(item)
        self._ended = {}

    def cells(self, module):
        """Return the cells of a module, after running them if need be."""
        name = _name(module)
        if name not in self._ended:
            self._run(self._batch(name))
        return Cells(name, module.ROWS, self._ended[name])

    def _want(self, item):
        """Note the row and the column of a test."""
        params = item.callspec.params
        _, wanted = self._wanted.setdefault(_name(item.module), (item.module, set()))
        wanted.add((params["row"], params["column"]))

    def _batch(self, first):
        """Return the modules, from one on, whose rows share processes."""
        names = [*self._wanted]
        batch, count = [], 0
        for name in names[names.index(first) :]:
            count += len({row for row, _ in self._wanted[name][1]})
            if batch and count > ROWS_OF_A_BATCH:
                break
            batch.append(name)
        return batch

    def _run(self, names):
        """Run what is wanted of some modules."""
        rows_of = {}
        for name in names:
            module, wanted = self._wanted[name]
            # In the order of the module, in which all ranks run them.
            for row in module.ROWS:
                columns = [column for other, column in wanted if other == row]
                places = {place_of(module.ROWS, row, column) for column in columns}
                for place in {*places, *(place.of_one for place in places)}:
                    rows_of.setdefault(place, []).append((name, row))
        ended = run_places(rows_of)
        self._ended |= dict.fromkeys(names, ended)


class Cells:
    """What the rows of a module end with, in plain Keras and on several processes.

    Args:
        name: The name of the module.
        rows: Its rows.
        ended: What each rank ended with, by row; by where that was.
    """

    def __init__(self, name, rows, ended):
        self._name, self._rows, self._ended = name, rows, ended

    def by_rank(self, row, column):
        """Return what each rank ended with; fail if any of them raised."""
        place = place_of(self._rows, row, column)
        outcomes = [ended[self._name, row] for ended in self._ended[place]]
        failures = []
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, Skipped):
                pytest.skip(outcome)
            if isinstance(outcome, Failure):
                where = f"{row!r} raised on rank {rank} of {place}"
                failures.append(f"{where}:\n{outcome}")
        # All of them: which of the ranks knows the reason depends on who came first.
        assert not failures, "\n".join(failures)
        return outcomes

    def check(self, row, column, tolerance=None):
        """Fail unless all ranks end with the same bits, and as one process.

        Up to a relative difference: by default that of the row's type.
        """
        place = place_of(self._rows, row, column)
        (right,) = self.by_rank(row, place.of_one)
        outcomes = self.by_rank(row, column)
        if place.of_one == PLAIN:
            wrong = differing_bits(outcomes)
            tolerance = tolerance or TOLERANCES[right["floatx"]]
            wrong += differences(outcomes[0], right, tolerance)
        else:
            wrong = differing_bits(outcomes, right)
        if wrong:
            lines = [f"{row!r} on {place}:", *wrong]
            raise AssertionError("\n".join(lines))


def everywhere(rows, *, quick=(), variants=(), not_central=(), on_devices=()):
    """Return each row with its columns; `make test` has one of the quick ones.

    Args:
        rows: The rows of a module, by name.
        quick: The names of those that `make test` runs.
        variants: The names of those that have one column.
        not_central: The names of those that central storage refuses.
        on_devices: The names of those that `make test` runs on two devices.
    """
    chosen = []
    for number, row in enumerate(rows):
        turn = TURNS[number % len(TURNS)]
        if row in on_devices:
            turn = ("mirrored", 2)
        if row in not_central:
            turn = tuple("mirrored" if it == "central" else it for it in turn)
        if row not in variants and _is_rare(place_of(rows, row, turn[0])):
            turn = turn[::-1]
        columns = [*turn] if row not in variants else [turn[0]]
        if EVERY_ROW:
            others = (*COLUMNS, *DEVICES)
            columns = [*turn, *(column for column in others if column not in turn)]
        for column in columns:
            if column == "central" and row in not_central:
                continue
            is_usual = column == turn[0] and row in quick
            marks = () if is_usual else SLOW
            chosen.append(pytest.param(row, column, marks=marks))
    return chosen


def on_processes(rows, names, **options):
    """Return some rows with the columns of processes that `everywhere` gives them.

    For tests of what a row ends with, beside the comparison. A row without such a
    column runs on two processes in `make test-all`.
    """
    chosen = [
        cell
        for cell in everywhere(rows, **options)
        if cell.values[0] in names and cell.values[1] in COLUMNS
    ]
    left = {*names} - {cell.values[0] for cell in chosen}
    return [*chosen, *(pytest.param(row, 2, marks=SLOW) for row in sorted(left))]


def _is_rare(place):
    """Say whether so few rows have a place that only `make test-all` starts it."""
    if place.strategy == "MultiWorkerMirroredStrategy":
        return place != DEVICES["workers"][0]
    return place.size == 3 and place.collective != "mpi"


def place_of(rows, row, column, engines=COLLECTIVES):
    """Say where a row runs in a column.

    Args:
        rows: All rows of the module.
        row: The name of the row.
        column: How many processes, a name of `DEVICES` or `IN_PARTS`, or a `Place`.
        engines: What joins processes in turn.

    Returns:
        The `Place`, with the collective whose turn it is.
    """
    if isinstance(column, Place):
        return column
    number = [*rows].index(row)
    if column in DEVICES:
        places = DEVICES[column]
        return places[number // 8 % len(places)]
    size = IN_PARTS.get(column, column)
    turn = (number + size) % len(engines)
    # One process under tfdist has none to be joined to.
    joined = "tensorflow" if size == 1 else engines[turn]
    parts = VIRTUAL_RANKS if column in IN_PARTS else None
    is_as_on_gpus = joined == "tensorflow" and column == 3
    return Place(size, joined, virtual_ranks=parts, is_as_on_gpus=is_as_on_gpus)


def _name(module):
    """Return the name by which the processes import a module."""
    return Path(module.__file__).stem
