"""Likely causes, each told by its evidence."""

import numpy as np
import pytest

from tfdist.verify.causes import cause_of_data, cause_of_difference
from tfdist.verify.recording import Batch

KERNEL = "m/dense/kernel"


def test_the_same_data(runs):
    assert cause_of_data(*runs) is None


def test_an_unsharded_dataset(runs):
    one, many = runs
    one.batches = [Batch(8, 60, 4)]
    for recording in many:
        recording.own_datasets, recording.batches = True, [Batch(4, 30, 4)]

    cause = cause_of_data(one, many)

    assert cause.name == "an unsharded dataset"
    assert "In step 1 all 2 ranks were given the same 4 rows." in cause.evidence
    assert "dataset.shard(context.num_input_pipelines" in cause.fix


def test_equal_rows_by_chance_are_no_copies(runs):
    one, many = runs
    one.batches = [Batch(8, 60, 1)]
    for recording in many:
        recording.own_datasets, recording.batches = True, [Batch(4, 30, 1)]

    assert cause_of_data(one, many) is None


def test_another_global_batch_size(runs):
    one, many = runs
    one.batches[1] = Batch(9, 31, 9)

    cause = cause_of_data(one, many)

    assert cause.name == "another global batch size"
    assert "In step 2 one process had 9 rows, and 2 had 4 (3 + 1)." in cause.evidence


def test_other_data(runs):
    one, many = runs
    one.batches[1] = Batch(4, 99, 4)

    cause = cause_of_data(one, many)

    assert cause.name == "other data"
    assert cause.evidence.startswith("In step 2 the 4 rows of all ranks were not")


def test_another_number_of_steps(runs):
    one, many = runs
    for recording in many:
        del recording.batches[1]

    cause = cause_of_data(one, many)

    assert cause.name == "another number of steps"
    assert "One process took 2 steps; the ranks took 1, 1." in cause.evidence


def set_gradients(many, *values, group="raw_gradients"):
    for recording, value in zip(many, values, strict=True):
        getattr(recording, group)[KERNEL] = np.array(value)


def name_of(runs):
    return cause_of_difference(*runs).name


def test_other_initial_weights(runs):
    runs[1][0].initial[KERNEL] = np.array([1.0, 2.5])

    assert name_of(runs) == "initial weights that the seed does not reach"


def test_batch_normalisation(runs):
    one, many = runs
    many[0].batch_norms = ["m/a", "m/b", "m/c", "m/d"]
    set_gradients(many, [0.5, 1.0], [0.5, -1.0])

    cause = cause_of_difference(one, many)

    assert cause.name == "batch normalisation that is not synchronised"
    assert "global batch: 'm/a', 'm/b', 'm/c' and 1 more." in cause.evidence
    assert "BatchNormalization(synchronized=True)" in cause.fix


def test_random_numbers(runs):
    one, many = runs
    many[0].draws = ["the layer 'noise' (Noise) with tf.random.normal"]
    set_gradients(many, [0.5, 1.0], [0.5, -1.0])

    cause = cause_of_difference(one, many)

    assert cause.name == "random numbers in a step"
    assert "layer 'noise' (Noise) with tf.random.normal draws" in cause.evidence


def test_gradients_that_differ_with_nothing_to_see(runs):
    one, many = runs
    many[0].custom_steps = ["train_step", "compute_loss"]
    set_gradients(many, [0.5, 1.0], [0.5, -1.0])

    cause = cause_of_difference(one, many)

    assert cause.name == "something computed over all rows of a batch"
    assert "the script's own train_step and compute_loss" in cause.fix


def test_a_loss_that_sums(runs):
    one, many = runs
    set_gradients(many, [0.25, -0.5], [0.25, -0.5])

    cause = cause_of_difference(one, many)

    assert cause.name == "a custom loss that does not average"
    assert "was 0.5 times that of one" in cause.evidence
    assert cause.evidence.endswith("then of each rank: 1, 1, 1.")


def test_a_loss_that_sums_in_a_method_of_the_script(runs):
    one, many = runs
    many[0].custom_steps, many[0].losses = ["compute_loss"], [None]
    set_gradients(many, [0.25, -0.5], [0.25, -0.5])

    cause = cause_of_difference(one, many)

    assert "the loss of the script's own compute_loss were a sum" in cause.evidence
    assert cause.evidence.endswith(": 1, unknown, 1.")


def test_a_custom_loop_that_does_not_divide(runs):
    one, many = runs
    for recording in many:
        recording.is_keras_step = False

    cause = cause_of_difference(one, many)

    assert cause.name == "a loss that is not divided by the global batch size"
    assert "added up to 2 times that of one" in cause.evidence


@pytest.mark.parametrize("applied", [[[0.3, -0.1], [0.3, -0.1]], [[0.05, -0.1]] * 2])
def test_clipping_by_hand(runs, applied):
    set_gradients(runs[1], *applied, group="applied_gradients")

    assert name_of(runs).startswith("gradients that are clipped, or changed,")


def test_nothing_to_see_at_all(runs):
    cause = cause_of_difference(*runs)

    assert cause.name == "an update of its own"
    assert "--float64" in cause.fix


def test_batch_normalisation_whose_gradients_agree(runs):
    runs[1][0].batch_norms = ["m/norm"]

    assert name_of(runs) == "batch normalisation that is not synchronised"


@pytest.mark.parametrize(
    ("number", "generator"),
    [(0, "tf.random (by rank: 1, 5)"), (1, "Python's random"), (2, "np.random")],
)
def test_seeds_that_differ(runs, number, generator):
    one, many = runs
    many[1].seeds[number] = "5"
    assert cause_of_data(one, many) is None
    many[0].initial[KERNEL] = np.array([1.0, 2.5])
    many[0].batches[0].fingerprint += 1

    for cause in (cause_of_data(one, many), cause_of_difference(one, many)):
        assert cause.name == "a seed that differs by rank"
        assert cause.evidence.endswith(f"with different seeds of {generator}.")
    assert cause.evidence.startswith("Before the first step m/dense/kernel was not")
