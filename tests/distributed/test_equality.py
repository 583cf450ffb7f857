"""The equality matrix, its common rows: in float32, and on one process under tfdist.

The other modules of this name go through the options, in float64, where any wrong term
shows. What a row is and how to add one is told in `equality_matrix`.
"""

import pytest
from equality_matrix import COLUMNS, SLOW
from equality_models import (
    EVEN,
    adam,
    embedded,
    fitting,
    functional,
    in_float32,
    sgd,
    subclassed,
)

MEASURED = {"metrics": ["accuracy", "auc"], "then": ["evaluate", "predict"]}


def clipped():
    import keras

    return keras.optimizers.SGD(1.0, global_clipnorm=0.1)


def loss_scaled():
    import keras

    return keras.optimizers.LossScaleOptimizer(sgd())


ROWS = {
    name: in_float32(row)
    for name, row in {
        "sequential, sgd, even": fitting(rows=EVEN, optimizer=sgd, **MEASURED),
        "functional, adam": fitting(functional, optimizer=adam, **MEASURED),
        "subclassed, adam": fitting(subclassed, optimizer=adam, **MEASURED),
        "sparse gradients": fitting(embedded, optimizer=sgd),
        "clipped": fitting(optimizer=clipped),
        "loss scaled": fitting(optimizer=loss_scaled),
        "eager": fitting(run_eagerly=True),
        "XLA": fitting(jit_compile=True),
    }.items()
}
# The column of `make test`; the other rows have one there in float64.
USUAL = {
    "sequential, sgd, even": 1,
    "functional, adam": 2,
    "sparse gradients": 1,
}


@pytest.mark.parametrize(
    ("row", "column"),
    [
        pytest.param(row, column, marks=() if USUAL.get(row) == column else SLOW)
        for row in ROWS
        for column in (1, *COLUMNS)
    ],
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
