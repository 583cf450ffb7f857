"""What is measured, and what is refused; no process is started."""

import json

import pytest

from tfdist.estimate import EstimateError, Link, Orders, measure, start
from tfdist.launch import Exit, RunResult

SCRIPT = ("train.py", "--epochs", "1")
NETWORK = Link(5e-5, 8e-10)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(start, "available_cores", lambda: (0, 1, 2, 3))


@pytest.fixture
def runs(monkeypatch, make_profile):
    """Let processes write their profiles; return the orders of each run, and specs."""
    runs = []

    def run(specs, **options):
        orders = start.ChildOrders.read(specs[0].argv[3])
        runs.append((orders, specs))
        for spec in specs:
            profile = make_profile(orders.ranks)
            profile.write(start.profile_file(orders.folder, spec.rank))
        return RunResult(tuple(Exit(spec.rank, 0, 1.0) for spec in specs))

    monkeypatch.setattr(start, "run", run)
    return runs


@pytest.fixture
def groups(monkeypatch):
    """Let sums of gradients take 3 ms on the slower rank; return the groups."""
    groups = []

    def measure_group(orders):
        groups.extend(orders)
        seconds = {"small": [1e-3], "none": [2e-3, 3e-3, 4e-3], "fp16": [2e-3]}
        reports = [
            {"messages": 3, "runtime": 5, "kept": 6, "most": 7, "seconds": seconds},
            {"messages": 3, "runtime": 4, "kept": 9, "most": 9}
            | {"seconds": seconds | {"none": [1e-3] * 3}},
        ]
        return [reports]

    monkeypatch.setattr(start, "start", measure_group)
    return groups


def test_on_this_machine_each_size_is_measured_with_its_neighbours(runs, groups):
    measured = measure(Orders(SCRIPT, (2, 4)))
    assert [(o.ranks, o.processes) for o, _ in runs] == [(1, 1), (2, 2), (4, 4)]
    assert [[spec.cores for spec in specs] for _, specs in runs] == [
        [(0, 1, 2, 3)],
        [(0, 1), (2, 3)],
        [(0,), (1,), (2,), (3,)],
    ]
    assert [group.size for group in groups] == [2, 4]
    assert list(measured.profiles) == [1, 2, 4]
    calibration = measured.calibrations[2]
    assert (calibration.seconds, calibration.messages) == (3e-3, 3)
    assert (calibration.runtime, calibration.kept, calibration.most) == (5, 9, 9)


def test_of_a_cluster_one_rank_and_two_sizes_are_measured(runs, groups):
    measured = measure(Orders(SCRIPT, (1, 8, 64), network=NETWORK))
    assert [(o.ranks, o.processes) for o, _ in runs] == [(1, 1), (64, 1)]
    _, [spec] = runs[1]
    assert json.loads(spec.env["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert spec.env["TFDIST_SIZE"] == "64"
    assert [group.size for group in groups] == [2]
    assert measured.per_host == 1


def test_ranks_of_few_cores_are_measured_with_neighbours(runs, groups):
    orders = Orders(SCRIPT, (8,), network=NETWORK, cores=0.5)
    assert orders.ranks_of_host == 8
    measure(orders)
    assert [o.processes for o, _ in runs] == [1, 8]
    _, specs = runs[1]
    assert {spec.cores for spec in specs} == {()}
    assert specs[0].env["TF_NUM_INTRAOP_THREADS"] == "1"
    apart = Orders(SCRIPT, (8,), network=NETWORK, cores=2, per_host=1)
    assert (apart.ranks_of_host, apart.processes_of(8)) == (1, 1)
    assert Orders(SCRIPT, (8,), network=NETWORK, per_host=2).cores_of(8) == 2


def test_one_process_needs_no_engine(runs, groups):
    measured = measure(Orders(SCRIPT, (1,)))
    assert groups == []
    assert list(measured.profiles) == [1]


def test_a_script_without_steps(runs, groups, monkeypatch, make_profile):
    empty = make_profile(step_seconds=[])
    monkeypatch.setattr(start.Profile, "read", lambda file: empty)
    with pytest.raises(EstimateError, match="0 measured steps as one of 1 processes"):
        measure(Orders(SCRIPT))


def test_a_script_that_fails(monkeypatch):
    exits = (Exit(0, 1, 1.0, tail=("NameError: x",)),)
    failed = RunResult(exits, "failed", failed_rank=0)
    monkeypatch.setattr(start, "run", lambda specs, **options: failed)
    with pytest.raises(EstimateError, match=r"(?s)does not run: .*\n    NameError: x"):
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
