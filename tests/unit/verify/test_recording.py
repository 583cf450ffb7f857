"""Recordings go to a file and come back."""

from dataclasses import replace

import numpy as np

from tfdist.verify.recording import Recording

ARRAYS = ("initial", "raw_gradients", "applied_gradients")


def test_what_is_written_is_read(runs, tmp_path):
    one, _ = runs
    one.switched_off, one.was_jitted, one.losses = ["drop"], True, [None, 2.0]

    one.write(tmp_path)
    back = Recording.read(tmp_path, 0)

    for group in ARRAYS:
        assert_equal(getattr(back, group), getattr(one, group))
    assert back.states.keys() == one.states.keys()
    for step, state in one.states.items():
        assert_equal(back.states[step], state)
    assert without_arrays(back) == without_arrays(one)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def without_arrays(recording):
    return replace(
        recording, initial={}, raw_gradients={}, applied_gradients={}, states={}
    )


def test_what_no_process_has_left(tmp_path):
    assert Recording.read(tmp_path, 0) is None


def test_steps_are_counted():
    assert Recording().steps == 0
