"""What is measured, and what is refused; no process is started."""

import json
from dataclasses import asdict

import pytest

from tfdist.benchmarks import BenchmarkError
from tfdist.estimate import Link, Scenario, measure, measurement

SCRIPT, NETWORK = ("train.py", "--epochs", "1"), Link(5e-5, 8e-10)


@pytest.fixture
def started(monkeypatch, make_profile):
    """Let sums take 3 ms on a machine of four cores; return what is started."""

    class Started(list):
        profile = {}

    started = Started()

    def start(groups):
        started.extend(groups)
        ranks = [each.settings["ranks"] for each in groups]
        return [[asdict(make_profile(number, **started.profile))] for number in ranks]

    def run_allreduce(size, sizes_bytes, **options):
        started.append((size, *sizes_bytes, options["collective"]))
        return [{"seconds": {"tfdist": seconds}} for seconds in (1e-3, 3e-3)]

    def available_cores():
        return 0, 1, 2, 3

    for function in (start, run_allreduce, available_cores):
        monkeypatch.setattr(measurement, function.__name__, function)
    return started


def test_the_script_runs_alone_and_as_one_rank_of_the_most(started):
    measured = measure(Scenario(SCRIPT, NETWORK, (8, 64), per_host=2, engine="mpi"))
    alone, largest, sums = started
    assert [each.settings["ranks"] for each in (alone, largest)] == [1, 64]
    [spec] = largest.plan()
    assert json.loads(spec.env["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert spec.env["TFDIST_SIZE"] == "64"
    assert spec.cores == (0, 1)
    assert [spec.cores for spec in alone.plan()] == [(0, 1, 2, 3)]
    # A host has two ranks, whose gradients are of 8 MiB.
    assert sums == (2, 4096, 2**23, "mpi")
    assert (measured.alone.ranks, measured.largest.ranks) == (1, 64)
    calibration = measured.calibration
    assert (calibration.small_seconds, calibration.seconds) == (1e-3, 3e-3)


def test_one_process_needs_no_engine(started):
    measured = measure(Scenario(SCRIPT, NETWORK, (1,)))
    assert len(started) == 1
    assert measured.alone is measured.largest
    assert measured.calibration is None


def test_a_script_without_steps(started):
    started.profile = {"step_seconds": []}
    with pytest.raises(BenchmarkError, match="0 measured steps as one of 1 processes"):
        measure(Scenario(SCRIPT, NETWORK, (1,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 1}, r"steps must be at least 2\. Received: steps=1"),
        (
            {"per_host": 5},
            r"per_host \(--per-host\) must be from 1 to 4, .* Received: per_host=5\.",
        ),
        ({"per_host": 0}, r"Received: per_host=0\. Give fewer ranks of a host"),
    ],
)
def test_what_cannot_be_measured(started, changes, message):
    with pytest.raises(ValueError, match=message):
        Scenario(SCRIPT, NETWORK, **changes)
    assert started == []
