"""The file of a run: what is written is read again, and nothing else is."""

import json
import math

import pytest

from tfdist.scaling import EpochRate, Run, read_run, text_of_run

RUN = Run(
    processes=2,
    epochs=(EpochRate(None, 2), EpochRate(90.0, 1), EpochRate(100.0, 1)),
    model="digits",
    global_batch_size=64,
    units_per_example={"tokens": 512},
    versions={"keras": "3.15.1"},
)
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


def test_the_format():
    assert json.loads(text_of_run(RUN)) == {
        "format": "tfdist throughput",
        "version": 1,
        "processes": 2,
        "epochs": [
            {"examples_per_second": None, "skipped_steps": 2},
            {"examples_per_second": 90.0, "skipped_steps": 1},
            {"examples_per_second": 100.0, "skipped_steps": 1},
        ],
        "model": "digits",
        "global_batch_size": 64,
        "units_per_example": {"tokens": 512},
        "versions": {"keras": "3.15.1"},
    }


def test_what_is_written_is_read_again(file):
    assert read_run(file(text_of_run(RUN))) == RUN


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


def refused(file, reason):
    with pytest.raises(
        ValueError,
        match=rf"^A file must be one that Throughput wrote\. Received: \S*run\.json, "
        rf"{reason}\. Train with callbacks=\[tfdist\.callbacks\.Throughput\("
        r"json=FILE\)\]\.$",
    ):
        read_run(file)


def test_a_missing_file(tmp_path):
    refused(tmp_path / "run.json", r"which cannot be read \(No such file.*\)")


@pytest.mark.parametrize("content", ["", "{", "a table\n"])
def test_what_is_not_json(file, content):
    refused(file(content), "which is not JSON")


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "run.json").write_bytes(b"\x89PNG\xff")
    refused(tmp_path / "run.json", "which is not JSON")


@pytest.mark.parametrize("content", [[], {}, {"format": "other"}, 5])
def test_json_of_another_kind(file, content):
    refused(file(content), 'whose "format" is not "tfdist throughput"')


@pytest.mark.parametrize("name", ["processes", "epochs"])
def test_a_field_that_is_missing(file, name):
    content = {key: value for key, value in SMALLEST.items() if key != name}
    refused(file(content), f"in which '{name}' is missing")


@pytest.mark.parametrize(
    "change", [{"epochs": 5}, {"epochs": [5]}, {"versions": 5}, {"epochs": None}]
)
def test_fields_of_other_types(file, change):
    refused(file(SMALLEST | change), "whose fields are of other types")


@pytest.mark.parametrize(
    "change",
    [
        {"processes": 0},
        {"processes": None},
        {"processes": 2.5},
        {"processes": True},
        {"global_batch_size": -64},
        {"model": ["digits"]},
        {"units_per_example": {"tokens": "512"}},
        {"epochs": [{"examples_per_second": 0.0}]},
        {"epochs": [{"examples_per_second": math.nan}]},
        {"epochs": [{"examples_per_second": math.inf}]},
    ],
    ids=str,
)
def test_values_that_cannot_be(file, change):
    refused(
        file(SMALLEST | change), "in which a value is of another type, or not positive"
    )


def test_another_version(file):
    with pytest.raises(
        ValueError,
        match=r"^A file of a run must be of version 1\. Received: \S*run\.json, of "
        r"version 2\. Read it with the version of tfdist that wrote it\.$",
    ):
        read_run(file(SMALLEST | {"version": 2}))


@pytest.mark.parametrize("epochs", [[], [{"examples_per_second": None}]])
def test_a_run_without_a_measurement(file, epochs):
    with pytest.raises(
        ValueError,
        match=r"^A run must have an epoch in which a step was measured\. "
        rf"Received: \S*run\.json, with {len(epochs)} epochs and no rate\. "
        r"Train for more steps, or give Throughput skip_steps=0\.$",
    ):
        read_run(file(SMALLEST | {"epochs": epochs}))
