"""Recordings, their files and their fingerprints."""

import numpy as np
import pytest

from tfdist.verify.recording import Batch, Entry, Recording, batch_of, joined

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([b"a", b"b", b"c", b"d", b"e", b"f"], dtype=object)


@pytest.mark.parametrize("bounds", [(0, 2, 6), (0, 6, 6), (0, 1, 2, 6)])
def test_parts_add_up(bounds):
    parts = [
        batch_of([X[start:stop], Y[start:stop]])
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]

    whole = batch_of([X, Y])
    assert joined(parts).fingerprint == whole.fingerprint
    assert joined(parts).rows == whole.rows == whole.distinct == 6


def test_the_order_of_rows_does_not_matter():
    assert batch_of([X[::-1], Y[::-1]]) == batch_of([X, Y])


@pytest.mark.parametrize("other", [[X + 1, Y], [X, Y[::-1]], [X[:5], Y[:5]]])
def test_other_rows_show(other):
    assert batch_of(other).fingerprint != batch_of([X, Y]).fingerprint


def test_rows_that_do_not_count_are_left_out():
    assert batch_of([X], 2) == batch_of([X[:2]])
    assert batch_of([X], 0) == Batch(0, 0, 0)


def take_steps(recording, count, wanted):
    for number in range(count):
        weight = np.array([number, 1.0])
        state = {
            "w": (Entry("weights", "float64"), weight),
            "m": (Entry("metrics", "float64", "sum"), np.array(number)),
        }
        recording.end_step(batch_of([X], 1), state, wanted)
        weight += 100.0  # The buffer belongs to TensorFlow.


@pytest.mark.parametrize(("wanted", "kept"), [(3, [1, 2, 3]), (10**8, [1, 3])])
def test_of_many_states_the_first_and_the_last_are_kept(wanted, kept):
    recording = Recording()
    take_steps(recording, 3, wanted=wanted)

    assert recording.steps == 3
    assert {step: state["w"][0] for step, state in recording.states.items()} == {
        step: step - 1 for step in kept
    }
    assert [batch.rows for batch in recording.batches] == [1, 1, 1]


def test_other_ranks_keep_digests_but_for_metrics():
    recording = Recording(rank=1)
    take_steps(recording, 2, wanted=2)

    assert recording.states[2]["w"].dtype == np.uint8
    assert recording.states[2]["m"] == 1
