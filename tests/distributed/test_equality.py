"""The equality matrix, its common rows: in float32, and on one process under tfdist.

The other modules of this name go through the options, in float64, where any wrong term
shows. What a row is and how to add one is told in `equality_matrix`.
"""

import pytest
from equality_matrix import SLOW
from equality_models import (
    EVEN,
    adam,
    embedded,
    fitting,
    functional,
    in_float32,
    sgd,
)

MEASURED = {"metrics": ["accuracy", "auc"], "then": ["evaluate", "predict"]}


ROWS = {
    name: in_float32(row)
    for name, row in {
        "sequential, sgd, even": fitting(rows=EVEN, optimizer=sgd, **MEASURED),
        "XLA": fitting(jit_compile=True),
        "functional, adam": fitting(functional, optimizer=adam, **MEASURED),
        "sparse gradients": fitting(embedded, optimizer=sgd),
    }.items()
}
CELLS = [
    ("sequential, sgd, even", 1),
    ("functional, adam", 2),
    ("sparse gradients", 1),
    pytest.param("sparse gradients", 3, marks=SLOW),
    pytest.param("XLA", 2, marks=SLOW),
]


@pytest.mark.parametrize(("row", "column"), CELLS)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
