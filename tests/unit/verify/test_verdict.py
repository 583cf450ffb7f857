"""Verdict on two runs, worked out by hand, and its report."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from tfdist.first_step.comparison import Cause
from tfdist.verify.compare import relative_difference
from tfdist.verify.recording import Entry, Layer
from tfdist.verify.verdict import First, Group, Verdict, json_of, judge, text_of

KERNEL, MOMENT = "m/dense/kernel", "adam/m_dense_kernel_momentum"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 4.0], [2.0, 4.0], 0.25),
        ([0.0], [1e-15], 1e-3),
        ([1, 2], [1, 4], 0.5),
        ([True, False], [True, True], 1.0),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.inf, 2.0], [np.inf, 1.0], 0.5),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_relative_difference(one, other, expected):
    amount = relative_difference(np.array(one), np.array(other))

    assert amount == pytest.approx(expected)


def test_runs_that_agree_pass(runs):
    verdict = judge(*runs)

    assert verdict.passed
    assert (verdict.size, verdict.steps, verdict.rows) == (2, 2, 4)
    assert (verdict.first, verdict.cause) == (None, None)
    assert [(g.kind, g.variables, g.largest) for g in verdict.groups] == [
        ("weights", 1, 0.0),
        ("optimizer", 1, 0.0),
        ("metrics", 1, 0.0),
        ("gradients", 1, 0.0),
    ]


def test_rounding_passes_and_is_reported(runs, change):
    one, many = runs
    change(many, KERNEL, [0.8, 2.200002], first_step=2)

    verdict = judge(one, many)

    assert verdict.passed
    assert verdict.groups[0].largest == pytest.approx(9e-7, rel=0.1)
    assert verdict.groups[0].where == KERNEL


def test_the_tolerance_is_that_of_the_least_precise_dtype_and_of_all_steps(runs):
    assert judge(*runs).tolerance == pytest.approx(2e-5)

    runs[0].layers[0].dtype = "bfloat16"
    verdict = judge(*runs)
    assert (verdict.dtype, verdict.tolerance) == ("bfloat16", pytest.approx(4e-2))


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
    del many[1].states[1]
    change(many, KERNEL, [0.8, 2.3], first_step=7)

    verdict = judge(one, many)

    # One rank has not kept its variables after step 1.
    assert (verdict.first.step, verdict.first.before) == (7, 0)


def test_the_first_difference_is_that_of_the_first_layer(runs, change):
    one, many = runs
    one.layers.insert(0, Layer("z", "Dense", "float32", ["z/kernel"]))
    for recording in (one, *many):
        recording.entries["z/kernel"] = Entry("weights", "float32")
    change((one, *many), "z/kernel", [1.0])
    for name in (MOMENT, KERNEL, "z/kernel"):
        change(many, name, [5.0, 5.0])

    assert judge(one, many).first.name == "z/kernel"


def test_a_small_step_hides_no_other_gradient(runs):
    one, many = runs
    many[1].gradients[KERNEL] = np.array([0.5, -1.02], np.float32)

    first = judge(one, many).first

    assert (first.name, first.step) == (f"the gradient of {KERNEL}", 1)
    assert first.layer == "m/dense (Dense)"
    # A fourth of the rows is the second rank's.
    assert first.amount == pytest.approx(0.005 / 1.005, rel=1e-3)


def test_a_rank_without_rows_has_no_gradient(runs):
    one, many = runs
    many[0].batches[0].rows, many[1].batches[0].rows = 4, 0
    many[1].gradients[KERNEL] = np.array([np.nan, np.nan])

    assert judge(one, many).passed


@pytest.mark.parametrize(
    ("aggregation", "total"), [("sum", 12.0), ("mean", 6.0), ("none", 9.0)]
)
def test_metrics_of_ranks_are_combined_as_in_keras(runs, aggregation, total):
    one, many = runs
    many[0].entries["loss/total"].aggregation = aggregation
    for step in (1, 2):
        one.states[step]["loss/total"] = np.array(total * step / 2, np.float32)

    assert judge(one, many).passed


def test_ranks_that_are_not_equal_fail(runs, change):
    one, many = runs
    change(many[1:], KERNEL, [0.8, 2.3])

    verdict = judge(one, many)

    assert not verdict.passed
    assert verdict.unequal == (KERNEL,)
    assert verdict.first is None


def add_bias(one, many, change, gradients):
    """Add a bias with these gradients, whose updates differ, and what follows it."""
    for recording, gradient in zip((one, *many), gradients, strict=True):
        recording.entries["m/bias"] = Entry("weights", "float32")
        recording.entries["adam/m_bias_momentum"] = Entry("optimizer", "float32")
        recording.gradients["m/bias"] = np.array([gradient], np.float32)
    for name in ("m/bias", "adam/m_bias_momentum"):
        change([one], name, [1e-3])
        change(many, name, [-1e-3])


def test_weights_whose_gradients_are_rounding_are_left_out(runs, change):
    one, many = runs
    add_bias(one, many, change, (1e-9, -2e-9, 3e-9))

    verdict = judge(one, many)

    assert verdict.passed
    assert verdict.noise == ("m/bias",)
    assert [group.variables for group in verdict.groups] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("kernel", "noise"), [([0.5, -1.0], ("m/bias",)), ([1e-6, 0.0], ())]
)
def test_noise_is_small_beside_the_gradients_of_the_same_layer(
    runs, change, kernel, noise
):
    one, many = runs
    add_bias(one, many, change, (1e-9, -2e-9, 3e-9))
    one.layers[0].variables.append("m/bias")
    for recording in (one, *many):
        recording.gradients[KERNEL] = np.array(kernel, np.float32)
        recording.gradients["m/last"] = np.array([1.0], np.float32)
        recording.entries["m/last"] = Entry("weights", "float32")
    change((one, *many), "m/last", [1.0])

    assert judge(one, many).noise == noise


def shuffle(one, *, gradient):
    """Return one process with another order of rows."""
    shuffled = deepcopy(one)
    shuffled.gradients[KERNEL] = np.array(gradient, np.float32)
    return shuffled


# The other gradient of two processes, and that of one process in another order.
@pytest.mark.parametrize(
    ("other", "own", "passed"),
    [
        ([0.5, -1.02], [0.5, -1.003], True),
        ([0.5, -1.08], [0.5, -1.003], False),
        # A factor, however much was measured.
        ([1.0, -2.0], [0.5, -1.2], False),
    ],
)
def test_rounding_is_measured_by_another_order_of_rows(runs, other, own, passed):
    one, many = runs
    many[0].gradients[KERNEL] = many[1].gradients[KERNEL] = np.array(other, np.float32)

    assert not judge(one, many).passed
    verdict = judge(one, many, [shuffle(one, gradient=own)])

    assert verdict.passed == passed
    assert verdict.rounding == pytest.approx(abs(own[1] + 1) / abs(own[1]), rel=1e-2)


def test_rounding_is_measured_only_where_it_matters(runs, change):
    one, many = runs
    never = (pytest.fail("measured") for _ in [0])
    judge(one, many, never)

    change(many, KERNEL, [0.8, 2.3])
    many[0].batch_norms = {"m/norm": None}
    assert not judge(one, many, never).passed


@pytest.mark.parametrize(("name", "value"), [("loss/total", 8.0), ("m/rows", [9.0])])
def test_a_step_that_depends_on_the_order_of_rows_shows_no_rounding(
    runs, change, name, value
):
    one, many = runs
    for recording in (one, *many):
        recording.entries["m/rows"] = Entry("state", "float32")
    change((one, *many), "m/rows", [1.0])
    many[1].gradients[KERNEL] = np.array([0.5, -1.02], np.float32)
    order = shuffle(one, gradient=[0.5, -1.01])
    assert judge(one, many, [order]).passed

    change([order], name, value)

    verdict = judge(one, many, [order])
    assert not verdict.passed
    assert verdict.rounding is None


def test_rounding_is_measured_until_it_explains_a_difference(runs):
    one, many = runs
    many[1].gradients[KERNEL] = np.array([0.5, -1.02], np.float32)
    left = (shuffle(one, gradient=[0.5, g]) for g in (-1.0, -1.01, -1.0))

    assert judge(one, many, left).passed
    assert len([*left]) == 1


def test_later_steps_have_the_rounding_of_all_variables(runs, change):
    one, many = runs
    change(many, KERNEL, [0.8, 2.24], first_step=2)
    order = shuffle(one, gradient=[0.5, -1.0])
    assert not judge(one, many, [order]).passed

    change([order], KERNEL, [0.8, 2.21], first_step=2)

    assert judge(one, many, [order]).passed


@pytest.mark.parametrize("gradients", [(1e-9,) * 3, (np.inf, np.inf, np.nan)])
def test_gradients_that_are_not_rounding(runs, change, gradients):
    one, many = runs
    add_bias(one, many, change, gradients)

    assert judge(one, many).noise == ()


PASSED = Verdict(
    passed=True,
    size=2,
    steps=5,
    rows=64,
    dtype="float32",
    tolerance=5e-5,
    rounding=None,
    groups=(Group("weights", 8, 3e-7, "a/kernel"), Group("state", 2, 0.0, "b/mean")),
    first=None,
    cause=None,
    noise=(),
    unequal=(),
)
FIRST = First("a/kernel", "a (Dense)", 0.02, 1, 0, 0.03)
FAILED = replace(
    PASSED, passed=False, first=FIRST, cause=Cause("a seed", "It was seen.", "Do it.")
)


def table(header, rows):
    return "\n".join(" ".join(row) for row in (header, *rows))


def report(verdict, steps=5):
    return text_of(verdict, "train.py", steps=steps, table=table)


def flat(text):
    return " ".join(text.split())


def test_the_report_of_a_pass():
    lines = report(PASSED).splitlines()

    assert lines[:2] == [
        "PASS: 2 processes train train.py as one does (5 steps).",
        "Largest relative difference: 3.0e-07 in a/kernel.",
    ]
    assert "weights 8 3.0e-07 a/kernel" in lines
    assert "other state of layers 2 0.0e+00 b/mean" in lines
    assert (
        "Tolerance: 5e-05 (float32, 5 steps). The global batches were the same (64 "
        in flat(report(PASSED))
    )


def test_the_report_of_a_fail():
    text = flat(report(FAILED))

    assert text.startswith("FAIL: 2 processes do not train train.py as one does (5 ste")
    assert (
        "First variable that differs, in the order of the forward pass: a/kernel of "
        "layer a (Dense), by 2.0e-02 relative to its largest entry. It began at step "
        "1; after the last step it is 3.0e-02. Likely cause: a seed. It was seen. "
        "Fix: Do it."
    ) in text
    assert "all ranks ended with the same bits" not in text

    later = flat(report(replace(FAILED, first=replace(FIRST, step=10, before=1))))
    assert "It began after step 1, by step 10;" in later


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"noise": tuple("abcdef")}, "made of rounding alone: a, b, c, d and 2 more."),
        ({"unequal": ("m",)}, "Not equal on all ranks: m."),
        (
            {"rounding": 0.011},
            "another order of the rows changes up to 1e-02: 10 times what it changes",
        ),
        ({"steps": 3}, "The script ended before 5 steps."),
    ],
)
def test_the_notes_of_a_report(change, note):
    assert note not in flat(report(PASSED))
    assert note in flat(report(replace(PASSED, **change)))


def test_json():
    infinite = replace(FAILED, first=replace(FIRST, amount=float("inf")))

    fields = json.loads(json_of(infinite))

    assert fields["passed"] is False
    assert fields["groups"][0]["where"] == "a/kernel"
    assert fields["cause"]["name"] == "a seed"
    assert fields["first"]["amount"] is None
