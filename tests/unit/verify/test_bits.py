"""Verdict on bits, worked out by hand, and its report."""

import json

import pytest

from tfdist.verify.bits_verdict import judge_bits, text_of_bits
from tfdist.verify.recording import Batch, Layer, Recording, Value
from tfdist.verify.verdict import json_of

KERNEL, RATE = Value("weights", "m/a/kernel"), Value("optimizer", "adam/learning_rate")
GRADIENT = Value("gradient", "m/a/kernel")
METRIC = Value("metrics", "loss/total")
OUTPUTS = [Value("output", "m/a", part) for part in range(4)]
ARITHMETIC = "virtual_ranks=4 and 1 intra-op thread"


def recorded(rank, size):
    """Return what a rank has recorded in two steps: four parts, a row each."""
    own = 4 // size
    recording = Recording(rank, arithmetic=ARITHMETIC)
    recording.layers = [Layer("m/a", "Dense", "float32", ["m/a/kernel"])]
    recording.batches = [Batch(own, own, own)] * 2
    recording.bits[0] = {KERNEL: b"0", RATE: b"0"}
    for step in (1, 2):
        parts = OUTPUTS[rank * own : (rank + 1) * own]
        results = [*parts, GRADIENT, RATE, KERNEL, METRIC]
        recording.bits[step] = {key: b"%d" % step for key in results}
    return recording


@pytest.fixture
def runs():
    """Return what one process and two have recorded, and they agree."""
    return [[recorded(0, 1)], [recorded(0, 2), recorded(1, 2)]]


def text(runs, steps=2):
    table = lambda header, rows: "\n".join(map(" ".join, [header, *rows]))  # noqa: E731
    return text_of_bits(judge_bits(runs), "train.py", steps=steps, table=table)


def test_the_same_bits_pass(runs):
    verdict = judge_bits(runs)

    assert verdict.passed
    assert (verdict.steps, verdict.variables, verdict.layers) == (2, 3, 1)
    one, two = verdict.runs
    assert (one.size, two.size, one.sha256) == (1, 2, two.sha256)
    lines = text(runs, 3).splitlines()
    assert lines[0] == (
        "PASS: 1 and 2 processes train train.py with the same bits (2 steps)."
    )
    assert lines[1] == "processes SHA-256 of 3 variables after 2 steps"
    assert lines[3] == f"2 {one.sha256}"
    assert lines[-1].endswith("ended before 3 steps.")
    assert json.loads(json_of(verdict))["runs"][0]["size"] == 1


@pytest.mark.parametrize(
    ("rank", "step", "key", "described", "cause"),
    [
        (1, 0, RATE, "before the first step, on 2 processes: adam/learning_rate.", "a"),
        (
            *(1, 2, OUTPUTS[3]),
            "in step 2, on 2 processes: the output of layer m/a (Dense), in part 4 of",
            "the forward pass of a layer",
        ),
        (
            *(0, 1, GRADIENT),
            "in step 1, on 2 processes: the summed gradient of m/a/kernel of layer m/a",
            "the loss, or the backward pass",
        ),
        (0, 2, RATE, "in step 2, on 2 processes: adam/learning_rate.", "an update"),
        (
            1,
            2,
            METRIC,
            "in step 2, on 2 processes: loss/total.",
            "an update of its own",
        ),
    ],
)
def test_the_first_difference_is_named(runs, rank, step, key, described, cause):
    runs[1][rank].bits[step][key] = b"other"

    verdict = judge_bits(runs)

    assert not verdict.passed
    assert verdict.cause.name.startswith(cause)
    words = " ".join(text(runs).split())
    assert "FAIL: 1 and 2 processes do not train train.py with" in words
    assert f"First difference, {described}" in words
    assert words.endswith(f"The strategy has {ARITHMETIC}.")


def test_what_is_computed_first_is_named_first(runs):
    for key in (KERNEL, RATE, GRADIENT):
        runs[1][0].bits[1][key] = b"other"

    assert judge_bits(runs).first.kind == "gradient"


def test_without_virtual_ranks_rounding_is_the_cause(runs):
    for recording in [*runs[0], *runs[1]]:
        recording.arithmetic = None
    runs[1][0].bits[1][KERNEL] = runs[1][1].bits[1][KERNEL] = b"rounded"

    verdict = judge_bits(runs)

    assert verdict.cause.name == "sums in another order"
    assert "virtual_ranks=8" in verdict.cause.fix
    assert text(runs).endswith("The strategy has no virtual_ranks.")


def test_other_data_is_the_cause_before_all_that_follows(runs):
    runs[1][1].batches = [Batch(4, 4, 4)] * 2
    runs[1][1].bits[1][OUTPUTS[2]] = b"other"

    assert judge_bits(runs).cause.name == "another global batch size"
