"""Fingerprints of parts add up to that of the whole."""

import numpy as np
import pytest

from tfdist.verify.fingerprint import batch_of, digest, joined
from tfdist.verify.recording import Batch

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


def test_equal_rows_are_counted_once():
    assert batch_of([np.ones((4, 2))]).distinct == 1


def test_a_digest_tells_bits_apart():
    assert np.array_equal(digest(X), digest(X.copy()))
    assert not np.array_equal(digest(np.array([0.0])), digest(np.array([-0.0])))
