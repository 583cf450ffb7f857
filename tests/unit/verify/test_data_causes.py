"""Causes that lie in the data."""

from tfdist.verify.data_causes import cause_of_data
from tfdist.verify.recording import Batch


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


def test_other_data_because_of_a_seed(runs):
    one, many = runs
    one.batches[0] = Batch(4, 99, 4)
    many[1].seeds = ["2", "a", "b"]

    assert cause_of_data(one, many).name == "a seed that differs by rank"


def test_another_number_of_steps(runs):
    one, many = runs
    for recording in many:
        del recording.batches[1]

    cause = cause_of_data(one, many)

    assert cause.name == "another number of steps"
    assert "One process took 2 steps; the ranks took 1, 1." in cause.evidence
