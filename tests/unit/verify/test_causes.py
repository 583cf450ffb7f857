"""Likely causes, each named by its evidence."""

import numpy as np
import pytest

from tfdist.first_step.comparison import Cause
from tfdist.verify import causes
from tfdist.verify.causes import cause_of_data
from tfdist.verify.compare import Rounding
from tfdist.verify.recording import Batch

KERNEL = "m/dense/kernel"


def cause_of_difference(one, many):
    return causes.cause_of_difference(one, many, Rounding(one))


def unshard(one, many, distinct=4):
    one.batches = [Batch(8, 60, distinct)]
    for recording in many:
        recording.own_datasets, recording.batches = True, [Batch(4, 30, distinct)]


def change_rows(one, many):
    one.batches[1] = Batch(9, 31, 9)


def change_data(one, many):
    one.batches[1] = Batch(4, 99, 4)


def shorten(one, many):
    for recording in many:
        del recording.batches[1]


@pytest.mark.parametrize(
    ("plant", "name", "evidence"),
    [
        (
            unshard,
            "an unsharded dataset",
            "In step 1 all 2 ranks were given the same",
        ),
        (
            change_rows,
            "another global batch size",
            "In step 2 one process had 9 rows, and 2 had 4 (3 + 1).",
        ),
        (change_data, "other data", "In step 2 the 4 rows of all ranks were not those"),
        (
            shorten,
            "another number of steps",
            "One process took 2 steps; the ranks took 1, 1.",
        ),
    ],
)
def test_other_batches(runs, plant, name, evidence):
    plant(*runs)

    cause = cause_of_data(*runs)

    assert cause.name == name
    assert evidence in cause.evidence


def test_equal_batches(runs):
    assert cause_of_data(*runs) is None

    # Equal on all ranks by chance: each has one distinct row.
    unshard(*runs, distinct=1)
    assert cause_of_data(*runs) is None


def set_gradients(many, *values):
    for recording, value in zip(many, values, strict=True):
        recording.gradients[KERNEL] = np.array(value)


def name_of(runs):
    return cause_of_difference(*runs).name


def test_other_initial_weights(runs):
    runs[1][0].initial[KERNEL] = np.array([1.0, 2.5])

    assert name_of(runs) == "initial weights that the seed does not reach"


def test_other_gradients(runs):
    one, many = runs
    set_gradients(many, [0.5, 1.0], [0.5, -1.0])
    assert name_of(runs).startswith("something computed over all rows of a batch, or")

    many[0].batch_norms = dict.fromkeys(["m/a", "m/b", "m/c", "m/d", "m/e"])
    cause = cause_of_difference(one, many)
    assert cause.name == "batch normalisation that is not synchronised"
    assert "global batch: 'm/a', 'm/b', 'm/c', 'm/d' and 1 more." in cause.evidence


def test_a_multiple_of_the_gradients(runs):
    one, many = runs
    set_gradients(many, [0.25, -0.5], [0.25, -0.5])

    assert name_of(runs).startswith("something computed over all rows of a batch, or")

    # In a custom loop gradients are summed, not weighted by rows.
    many[0].is_keras_step = False
    set_gradients(many, [0.5, -1.0], [0.5, -1.0])
    cause = cause_of_difference(one, many)
    assert cause.name == "a loss that is not divided by the global batch size"
    assert "was 2 times that of one" in cause.evidence


@pytest.mark.parametrize("value", [[0.0, 0.0], [np.inf, 1.0]])
def test_gradients_of_which_nothing_can_be_told(runs, value):
    one, many = runs
    for recording in (one, *many):
        set_gradients([recording], value)

    assert name_of(runs) == "an update of its own"


def test_what_the_check_of_the_first_step_has_found_comes_first(runs):
    set_gradients(runs[1], [0.5, 1.0], [0.5, -1.0])
    runs[1][0].first_step = Cause("a sum", "Half the gradients.", "Take the mean.")

    assert name_of(runs) == "a sum"


def test_equal_gradients(runs):
    cause = cause_of_difference(*runs)
    assert cause.name == "an update of its own"
    assert "--float64" in cause.fix

    runs[0].is_float64_wanted = True
    assert "--float64" not in cause_of_difference(*runs).fix

    runs[1][0].batch_norms = {"m/norm": None}
    assert name_of(runs) == "batch normalisation that is not synchronised"


@pytest.mark.parametrize(
    ("number", "generator"), [(0, "tf.random (by rank: 1, 5)"), (2, "np.random (by")]
)
def test_seeds_that_differ(runs, number, generator):
    one, many = runs
    many[1].seeds[number] = "5"
    assert cause_of_data(one, many) is None
    many[0].initial[KERNEL] = np.array([1.0, 2.5])
    many[0].batches[0].fingerprint += 1

    for cause in (cause_of_data(one, many), cause_of_difference(one, many)):
        assert cause.name == "a seed that differs by rank"
        assert f"with different seeds of {generator}" in cause.evidence
    assert cause.evidence.startswith("Before the first step m/dense/kernel was not")
