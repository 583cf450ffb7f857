import pytest

from tfdist.cluster.finding import EFFECTS, WARNING, Finding, refuse_first

FINDING = Finding("task.index", "It is 1.", "index=1", "Use 0.", "wrong rank")


def test_a_finding_is_an_error_in_three_parts():
    assert FINDING.message == "It is 1. Received: index=1. Use 0."
    assert FINDING.severity == "error"
    assert FINDING.why == EFFECTS["wrong rank"]


def test_what_takes_several_lines_begins_with_one_of_its_own():
    finding = Finding("line 1", "It is cut.", "\n  {\n   ^", "Close it.", "hang")
    assert finding.message == "It is cut. Received:\n  {\n   ^\nClose it."


def test_the_first_is_refused():
    second = Finding("task", "No.", "0", "Go.", "hang", WARNING)

    with pytest.raises(ValueError, match="^TF_CONFIG It is 1. Received: index=1. Use"):
        refuse_first([FINDING, second], "TF_CONFIG ")
    assert refuse_first([]) is None


def test_every_effect_is_a_sentence():
    assert all(why[0].isupper() and why.endswith(".") for why in EFFECTS.values())
