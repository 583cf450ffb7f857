"""The verdict on two runs."""

import numpy as np
import pytest

from tfdist.verify.recording import Entry
from tfdist.verify.verdict import judge

KERNEL = "m/dense/kernel"


def test_runs_that_agree_pass(runs):
    verdict = judge(*runs)

    assert verdict.passed
    assert (verdict.size, verdict.steps, verdict.rows) == (2, 2, 4)
    assert (verdict.first, verdict.cause) == (None, None)
    assert [(g.kind, g.variables) for g in verdict.groups] == [
        ("weights", 1),
        ("optimizer", 1),
        ("metrics", 1),
        ("gradients", 1),
    ]


def test_rounding_passes_and_is_told(runs, change):
    one, many = runs
    change(many, KERNEL, [0.8, 2.200002], first_step=2)

    verdict = judge(one, many)

    assert verdict.passed
    assert verdict.groups[0].largest == pytest.approx(9e-7, rel=0.1)
    assert verdict.groups[0].where == KERNEL


def test_a_difference_fails_and_is_located(runs, change):
    one, many = runs
    change(many, KERNEL, [0.8, 2.3], first_step=2)

    verdict = judge(one, many)

    assert not verdict.passed
    first = verdict.first
    assert (first.name, first.layer) == (KERNEL, "m/dense (Dense)")
    assert (first.step, first.before) == (2, 1)
    assert first.amount == first.last_amount == pytest.approx(0.1 / 2.3, rel=1e-5)


def test_between_kept_steps_the_beginning_is_not_known(runs, change):
    one, many = runs
    for recording in (one, *many):
        recording.states[7] = recording.states.pop(2)
    change(many, KERNEL, [0.8, 2.3], first_step=7)

    first = judge(one, many).first

    assert (first.step, first.before) == (7, 1)


def test_a_gradient_that_differs_is_called_one(runs):
    one, many = runs
    many[1].applied_gradients[KERNEL] *= 2

    first = judge(one, many).first

    assert (first.name, first.step) == (f"the gradient of {KERNEL}", 1)
    assert first.layer == "m/dense (Dense)"


def test_ranks_that_are_not_equal_fail(runs, change):
    one, many = runs
    change(many[1:], KERNEL, [0.8, 2.3])

    verdict = judge(one, many)

    assert not verdict.passed
    assert verdict.unequal == (KERNEL,)
    assert verdict.first is None


def test_other_data_fail_even_if_the_weights_agree(runs):
    one, many = runs
    one.batches[1].fingerprint = 5

    verdict = judge(one, many)

    assert not verdict.passed
    assert verdict.cause.name == "other data"


def test_what_is_made_of_rounding_is_left_out_and_told(runs, change):
    one, many = runs
    for recording, noise in zip((one, *many), (1e-9, -2e-9, 3e-9), strict=True):
        recording.entries["m/bias"] = Entry("weights", "float32")
        recording.raw_gradients["m/bias"] = np.array([noise], np.float32)
    change([one], "m/bias", [1e-3])
    change(many, "m/bias", [-1e-3])

    verdict = judge(one, many)

    assert verdict.passed
    assert verdict.noise == ("m/bias",)
    assert verdict.groups[0].variables == 1
