"""The verdict in words."""

import json
from dataclasses import replace

import pytest

from tfdist.verify.cause import Cause
from tfdist.verify.report import json_of, text_of
from tfdist.verify.verdict import First, Group, Verdict

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
