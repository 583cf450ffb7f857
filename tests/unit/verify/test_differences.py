"""Where two runs come apart."""

import numpy as np
import pytest

from tfdist.verify.differences import (
    common_steps,
    differences,
    dtype_of,
    noise_only,
    ordered,
)
from tfdist.verify.recording import Entry, Layer

KERNEL, MOMENT = "m/dense/kernel", "adam/m_dense_kernel_momentum"


def too_large(one, many):
    return [(d.name, d.step) for d in differences(one, many) if d.is_too_large]


def test_runs_that_agree(runs):
    assert too_large(*runs) == []
    assert {d.amount for d in differences(*runs)} == {0.0}


def test_a_difference_is_found_from_the_step_on_at_which_it_begins(runs, change):
    one, many = runs
    change(many, KERNEL, [0.8, 2.3], first_step=2)

    assert too_large(one, many) == [(KERNEL, 2)]
    [found] = [d for d in differences(one, many) if d.is_too_large]
    assert found.amount == pytest.approx(0.1 / 2.3, rel=1e-5)


def test_rounding_is_no_difference(runs, change):
    one, many = runs
    change(many, KERNEL, [0.800001, 2.200001], first_step=2)

    assert too_large(one, many) == []


def test_the_order_is_that_of_the_forward_pass(runs):
    one, _ = runs
    one.entries["z/kernel"] = Entry("weights", "float32")
    one.entries["a/unmet"] = Entry("weights", "float32")
    one.layers.insert(0, Layer("z", "Dense", "float32", ["z/kernel"]))

    expected = ["z/kernel", KERNEL, "a/unmet", MOMENT, "loss/total"]
    assert ordered(one) == expected


def test_the_type_is_that_of_the_layers(runs):
    one, _ = runs
    assert dtype_of(one) == "float32"

    one.layers[0].dtype = "bfloat16"
    assert dtype_of(one) == "bfloat16"


def test_a_small_step_hides_no_other_gradient(runs):
    one, many = runs
    many[1].applied_gradients[KERNEL] = np.array([0.5, -1.02], np.float32)

    [found] = [d for d in differences(one, many) if d.is_too_large]

    # A fourth of the rows is the second rank's.
    assert (found.name, found.kind, found.step) == (KERNEL, "gradients", 1)
    assert found.amount == pytest.approx(0.005 / 1.005, rel=1e-3)


def test_noise_is_left_out_with_its_moments(runs, change):
    one, many = runs
    for recording, noise in zip((one, *many), (1e-9, -2e-9, 3e-9), strict=True):
        recording.entries["m/dense/bias"] = Entry("weights", "float32")
        recording.entries["adam/m_dense_bias_momentum"] = Entry("optimizer", "float32")
        recording.raw_gradients["m/dense/bias"] = np.array([noise], np.float32)
    for name in ("m/dense/bias", "adam/m_dense_bias_momentum"):
        change([one], name, [1e-3])
        change(many, name, [-1e-3])

    assert noise_only(one, many) == ["m/dense/bias"]
    assert too_large(one, many) == []


def test_a_small_gradient_that_agrees_is_no_noise(runs):
    one, many = runs
    for recording in (one, *many):
        recording.raw_gradients["m/dense/bias"] = np.array([1e-9], np.float32)

    assert noise_only(one, many) == []


def test_an_overflow_makes_no_noise(runs):
    one, many = runs
    for recording, value in zip((one, *many), (np.inf, np.inf, np.nan), strict=True):
        recording.raw_gradients[KERNEL] = np.array([value, 1.0], np.float32)

    assert noise_only(one, many) == []


def test_a_mean_may_move_as_far_as_the_noise_before_it(runs, change):
    one, many = runs
    for recording, noise in zip((one, *many), (1e-9, -2e-9, 3e-9), strict=True):
        recording.entries["m/bias"] = Entry("weights", "float32")
        recording.entries["m/moving_mean"] = Entry("state", "float32")
        recording.raw_gradients["m/bias"] = np.array([noise], np.float32)
    change([one], "m/bias", [1e-3])
    change(many, "m/bias", [-1e-3])
    change([one], "m/moving_mean", [0.01])
    change(many, "m/moving_mean", [0.012])
    assert "m/moving_mean" not in [d.name for d in differences(one, many)]

    change(many, "m/moving_mean", [0.02])
    assert ("m/moving_mean", 1) in too_large(one, many)


def test_steps_that_all_have_kept(runs):
    one, many = runs
    assert common_steps(one, many) == [1, 2]

    del many[1].states[2]
    assert common_steps(one, many) == [1]
