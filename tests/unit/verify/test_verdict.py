"""Verdict on two runs, and its report."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tfdist.verify.causes import Cause
from tfdist.verify.recording import Entry
from tfdist.verify.verdict import First, Group, Verdict, json_of, judge, text_of

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


PASSED = Verdict(
    passed=True,
    size=2,
    steps=5,
    rows=64,
    dtype="float32",
    tolerance=5e-5,
    groups=(Group("weights", 8, 3e-7, "a/kernel"), Group("state", 2, 0.0, "b/mean")),
    first=None,
    cause=None,
    switched_off=(),
    noise=(),
    unequal=(),
    was_jitted=False,
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


def test_a_pass():
    lines = report(PASSED).splitlines()

    assert lines[:2] == [
        "PASS: 2 processes train train.py as one does (5 steps).",
        "Largest relative difference: 3.0e-07 in a/kernel.",
    ]
    assert "weights 8 3.0e-07 a/kernel" in lines
    assert "other state of layers 2 0.0e+00 b/mean" in lines
    assert (
        "Tolerance: 5e-05 (float32, 5 steps). The global batches were the same (64 "
        in (flat(report(PASSED)))
    )


def test_a_fail():
    text = flat(report(FAILED))

    assert text.startswith("FAIL: 2 processes do not train train.py as one does (5 ste")
    assert (
        "First variable that differs, in the order of the forward pass: a/kernel of "
        "layer a (Dense), by 2.0e-02 relative to its largest entry. It began at step "
        "1; after the last step it is 3.0e-02. Likely cause: a seed. It was seen. "
        "Fix: Do it."
    ) in text
    assert "all ranks ended with the same bits" not in text


def test_a_beginning_that_is_not_known_exactly():
    text = flat(report(replace(FAILED, first=replace(FIRST, step=10, before=1))))

    assert "It began between step 2 and step 10;" in text


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"switched_off": ("a", "b")}, "random numbers were switched off: a, b."),
        ({"noise": tuple("abcdef")}, "made of rounding alone: a, b, c, d and 2 more."),
        ({"unequal": ("m",)}, "Not equal on all ranks: m."),
        ({"was_jitted": True}, "jit_compile was switched off."),
        ({"steps": 3}, "The script ended before 5 steps."),
    ],
)
def test_what_the_verdict_rests_on(change, note):
    assert note not in flat(report(PASSED))
    assert note in flat(report(replace(PASSED, **change)))


def test_no_line_of_prose_is_too_long():
    cause = Cause("a cause " * 20, "It was seen. " * 20, "Do it. " * 20)

    assert max(map(len, report(replace(FAILED, cause=cause)).splitlines())) <= 88


def test_json():
    infinite = replace(FAILED, first=replace(FIRST, amount=float("inf")))

    fields = json.loads(json_of(infinite))

    assert fields["passed"] is False
    assert fields["groups"][0]["where"] == "a/kernel"
    assert fields["cause"]["name"] == "a seed"
    assert fields["first"]["amount"] is None
