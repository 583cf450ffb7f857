"""The file of a run: what is written is read again, and nothing else is."""

import json
import math

import pytest

from tfdist.scaling.throughput import EpochRate, Run, read_run, text_of_run

OPTIONAL = {
    "model": "digits",
    "global_batch_size": 64,
    "units_per_example": {"tokens": 512},
    "versions": {"keras": "3.15.1"},
}
RUN = Run(2, (EpochRate(None, 2), EpochRate(90.0, 1), EpochRate(100.0, 1)), **OPTIONAL)
SMALLEST = {
    "format": "tfdist throughput",
    "version": 1,
    "processes": 8,
    "epochs": [{"examples_per_second": 486914}],
}


@pytest.fixture
def file(tmp_path):
    """Return what writes a file and says where."""

    def file(content):
        path = tmp_path / "run.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return file


def test_what_is_written_is_read_again(file):
    assert read_run(file(text_of_run(RUN))) == RUN
    assert json.loads(text_of_run(RUN)) == {
        "format": "tfdist throughput",
        "version": 1,
        "processes": 2,
        "epochs": [
            {"examples_per_second": None, "skipped_steps": 2},
            {"examples_per_second": 90.0, "skipped_steps": 1},
            {"examples_per_second": 100.0, "skipped_steps": 1},
        ],
        **OPTIONAL,
    }


def test_by_hand_a_rate_is_enough(file):
    assert read_run(file(SMALLEST)) == Run(8, (EpochRate(486_914),))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [((None, 80.0, 100.0, 10.0), 80.0), ((80.0, 100.0), 90.0), ((70.0,), 70.0)],
)
def test_the_rate_of_a_run_is_the_median_of_what_was_measured(rates, expected):
    assert Run(1, tuple(map(EpochRate, rates))).examples_per_second == expected


def test_without_a_measurement_there_is_no_rate():
    assert math.isnan(Run(1, (EpochRate(None),)).examples_per_second)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a table\n", "JSONDecodeError: Expecting value"),
        ([], "TypeError: list indices"),
        ({"format": "other"}, "KeyError: 'version'"),
        (SMALLEST | {"version": 2}, 'ValueError: the format is not "tfdist throughput'),
        (
            {**SMALLEST, "processes": None},
            "ValueError: a value is of another type, or ",
        ),
        (SMALLEST | {"processes": True}, "ValueError: a value is of another type, or "),
        (SMALLEST | {"model": ["digits"]}, "ValueError: a value is of another type"),
        (SMALLEST | {"epochs": [5]}, "TypeError: 'int' object"),
        (
            SMALLEST | {"epochs": [{"examples_per_second": math.inf}]},
            "ValueError: a value is of another type, or not positive",
        ),
    ],
)
def test_files_of_something_else(file, content, reason):
    with pytest.raises(ValueError, match="A file must be one that") as raised:
        read_run(file(content))

    message = str(raised.value)
    assert f"run.json ({reason}" in message
    assert message.endswith("callbacks=[tfdist.callbacks.Throughput(json=FILE)].")


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"Received: .*FileNotFoundError: .*No such"):
        read_run(tmp_path / "run.json")


@pytest.mark.parametrize("epochs", [[], [{"examples_per_second": None}]])
def test_a_run_without_a_measurement(file, epochs):
    with pytest.raises(
        ValueError,
        match=r"^A run must have an epoch in which a step was measured\. "
        rf"Received: \S*run\.json, with {len(epochs)} epochs and no rate\. "
        r"Train for more steps, or give Throughput skip_steps=0\.$",
    ):
        read_run(file(SMALLEST | {"epochs": epochs}))
