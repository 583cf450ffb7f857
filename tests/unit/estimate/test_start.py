"""What is measured, and what is refused; no process is started."""

import json
from dataclasses import asdict

import pytest

from tfdist.benchmarks import BenchmarkError
from tfdist.estimate import Link, Orders, measure, start

SCRIPT = ("train.py", "--epochs", "1")
NETWORK = Link(5e-5, 8e-10)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(start, "available_cores", lambda: (0, 1, 2, 3))


@pytest.fixture
def batches(monkeypatch, make_profile):
    """Let sums take 3 ms on the slower rank; return the groups that start at once."""
    batches = []
    seconds = {"small": [1e-3], "none": [2e-3, 3e-3, 4e-3], "fp16": [2e-3]}
    sums = [
        {"messages": 3, "runtime": 5, "kept": 6, "most": 7, "seconds": seconds},
        {"messages": 3, "runtime": 4, "kept": 9, "most": 9}
        | {"seconds": seconds | {"none": [1e-3] * 3}},
    ]

    def report(group):
        ranks = group.settings.get("ranks")
        return [asdict(make_profile(ranks))] * group.size if ranks else sums

    def start_batch(groups):
        batches.append(groups)
        return [report(group) for group in groups]

    monkeypatch.setattr(start, "start", start_batch)
    return batches


def test_on_this_machine_each_size_is_measured_with_its_neighbours(batches):
    measured = measure(Orders(SCRIPT, (2, 4)))
    assert {len(batch) for batch in batches} == {1}
    groups = [group for [group] in batches]
    assert [group.settings.get("ranks") for group in groups] == [1, 2, 4, None, None]
    assert [[spec.cores for spec in group.plan()] for group in groups[:3]] == [
        [(0, 1, 2, 3)],
        [(0, 1), (2, 3)],
        [(0,), (1,), (2,), (3,)],
    ]
    assert [group.size for group in groups] == [1, 2, 4, 2, 4]
    assert {group.collective for group in groups[3:]} == {"tensorflow"}
    assert list(measured.profiles) == [1, 2, 4]
    calibration = measured.calibrations[2]
    assert (calibration.seconds, calibration.messages) == (3e-3, 3)
    assert (calibration.runtime, calibration.kept, calibration.most) == (5, 9, 9)


def test_of_a_cluster_one_rank_and_two_sizes_are_measured(batches):
    measured = measure(Orders(SCRIPT, (1, 8, 64), network=NETWORK))
    [(alone, largest, sums)] = batches
    assert [each.settings["ranks"] for each in (alone, largest)] == [1, 64]
    [spec] = largest.plan()
    assert json.loads(spec.env["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert spec.env["TFDIST_SIZE"] == "64"
    assert [each.size for each in (alone, largest, sums)] == [1, 1, 2]
    assert sums.settings["sizes_file"] == start.sizes_file(
        largest.settings["folder"], 64
    )
    assert measured.per_host == 1


def test_ranks_of_few_cores_are_measured_with_neighbours(batches):
    orders = Orders(SCRIPT, (8,), network=NETWORK, cores=0.5)
    assert orders.ranks_of_host == 8
    measure(orders)
    # With so many neighbours, one group after the other.
    [[alone], [largest], [sums]] = batches
    assert [each.size for each in (alone, largest, sums)] == [1, 8, 8]
    specs = largest.plan()
    assert {spec.cores for spec in specs} == {()}
    assert specs[0].env["TF_NUM_INTRAOP_THREADS"] == "1"
    apart = Orders(SCRIPT, (8,), network=NETWORK, cores=2, per_host=1)
    assert (apart.ranks_of_host, apart.processes_of(8)) == (1, 1)
    assert Orders(SCRIPT, (8,), network=NETWORK, per_host=2).cores_of(8) == 2


def test_one_process_needs_no_engine(batches):
    measured = measure(Orders(SCRIPT, (1,)))
    assert [len(batch) for batch in batches] == [1]
    assert list(measured.profiles) == [1]


def test_a_script_without_steps(batches, monkeypatch, make_profile):
    empty = make_profile(step_seconds=[])
    monkeypatch.setattr(start.Profile, "of", lambda report: empty)
    with pytest.raises(BenchmarkError, match="0 measured steps as one of 1 processes"):
        measure(Orders(SCRIPT))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 1}, r"steps \(--steps\) must be at least 2. Received: steps=1"),
        ({"per_host": 0}, r"per_host \(--per-host\) must be at least 1"),
        ({"per_host": 2}, r"needs several hosts. Received: per_host=2 and no network"),
        (
            {"network": NETWORK, "cores": 2, "per_host": 4},
            r"cores of this one, 4. Received: cores=2 \(--cores\) .* per_host=4",
        ),
        ({"cores": 5}, r"cores \(--cores\) must be above 0 and at most 4"),
        ({"sizes": (64,)}, r"at most 16.*Received: 64.*--network 10Gbit/s"),
        (
            {"network": NETWORK, "sizes": (64,), "per_host": 32},
            r"per_host \(--per-host\) must be at most 16",
        ),
    ],
)
def test_what_cannot_be_measured(changes, message):
    with pytest.raises(ValueError, match=message):
        Orders(SCRIPT, **changes)
