"""The processes that are started, and how their reports come back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tfdist import devices
from tfdist.benchmarks import processes
from tfdist.benchmarks.processes import (
    BenchmarkError,
    Group,
    report_file,
    run_program,
    start,
)
from tfdist.benchmarks.turns import TurnKeeper
from tfdist.cluster import tf_config
from tfdist.launching.result import Exit, RunResult

GROUPS = [
    Group("one", "a.module", {"batch_size": 4}),
    Group("two", "a/script.py", {"batch_size": 8}, size=2),
    Group("apart", "a.module", {"batch_size": 4}, size=2, joined=False),
]


@pytest.fixture
def jobs(script):
    """Return two groups with parameter servers."""
    group = script("server_jobs").ServerGroup
    return [
        group("one", "a.module", {"batch_size": 4}),
        group("two", "a.module", {"batch_size": 8}, workers=2, env={"OF_ALL": "two"}),
    ]


class FakeLauncher:
    """Leaves the orders of each process as its report."""

    specs = ()
    measures = True
    result = RunResult(())

    def __call__(self, specs, **options):
        self.specs, self.options = specs, options
        measured = zip(specs, self.orders, strict=True) if self.measures else ()
        for spec, orders in measured:
            file = report_file(Path(orders["folder"]), orders["process"])
            file.write_text(json.dumps([spec.rank, orders["settings"]["batch_size"]]))
        return self.result

    @property
    def orders(self):
        return [json.loads(spec.argv[-1]) for spec in self.specs]

    def fail(self, rank, count):
        exits = [Exit(other, -15, 2.0) for other in range(count)]
        exits[rank] = Exit(rank, 3, 1.0, ("first line", "second line"))
        self.result = RunResult(tuple(exits), "failed", failed_rank=rank)


@pytest.fixture(autouse=True)
def launcher(monkeypatch):
    launcher = FakeLauncher()
    monkeypatch.setattr(processes, "run", launcher)
    monkeypatch.setattr(processes, "available_cores", lambda: (4, 5))
    return launcher


def clusters(launcher):
    return [tf_config.loads(spec.env["TF_CONFIG"]) for spec in launcher.specs]


def test_reports_come_back_by_group_and_rank(launcher):
    assert start(GROUPS) == [[[0, 4]], [[1, 8], [2, 8]], [[3, 4], [4, 4]]]
    assert launcher.specs[0].argv[1:-1] == ("-m", "a.module")
    assert launcher.specs[1].argv[1:-1] == ("a/script.py",)
    assert launcher.options["output"].console is False


def test_all_groups_share_the_same_cores_with_one_thread_each(launcher):
    start(GROUPS)

    assert [spec.cores for spec in launcher.specs] == [(4,), (4,), (5,), (4,), (5,)]
    assert {spec.env["OMP_NUM_THREADS"] for spec in launcher.specs} == {"1"}
    assert [orders["group"] for orders in launcher.orders] == [0, 1, 1, 2, 2]


def test_processes_share_the_memory_of_a_gpu_or_have_one_each(launcher):
    start([GROUPS[0], replace(GROUPS[2], pinned=True)])

    growing = {spec.env["TF_FORCE_GPU_ALLOW_GROWTH"] for spec in launcher.specs}
    assert growing == {"true"}
    places = [orders.get("gpu") for orders in launcher.orders]
    assert places == [None, [0, 2], [1, 2]]


def test_only_a_joined_group_is_one_job(launcher):
    start(GROUPS)

    found = clusters(launcher)
    assert [cluster.size for cluster in found] == [1, 2, 2, 1, 1]
    assert [cluster.rank for cluster in found] == [0, 0, 1, 0, 0]
    assert found[1].addresses == found[2].addresses
    assert found[3].addresses != found[4].addresses


def test_horovod_jobs_are_stopped_between_their_turns(launcher):
    of_horovod = Group(
        "both", "m", {"batch_size": 2}, 2, collective="horovod", env={"OF_ALL": "x"}
    )

    start([GROUPS[0], of_horovod])

    first, *both = launcher.specs
    assert "HOROVOD_SIZE" not in first.env
    assert [spec.env["HOROVOD_SIZE"] for spec in both] == ["2", "2"]
    assert [spec.env.get("OF_ALL") for spec in launcher.specs] == [None, "x", "x"]
    assert [orders["is_stopped"] for orders in launcher.orders] == [False, True, True]


def test_each_job_with_servers_is_a_cluster_of_its_own(launcher, jobs):
    assert start(jobs) == [[[0, 4]], [[3, 8]]]

    found = clusters(launcher)
    assert [str(cluster.task) for cluster in found] == [
        *("chief 0", "worker 0", "ps 0"),
        *("chief 0", "worker 0", "worker 1", "ps 0"),
    ]
    assert found[0].chief != found[3].chief == found[4].chief
    assert [spec.env.get("OF_ALL") for spec in launcher.specs[2:4]] == [None, "two"]
    assert {spec.env["TF_NUM_INTRAOP_THREADS"] for spec in launcher.specs} == {"1"}
    # None of them may fail.
    assert {spec.task for spec in launcher.specs} == {None}
    assert [spec.rank for spec in launcher.specs] == list(range(7))


def test_more_processes_than_cores_if_only_memory_counts(launcher):
    three = replace(GROUPS[0], size=3)
    error = r"core for each process \(-np\). Received: 3 processes and 2 cores"
    with pytest.raises(ValueError, match=error):
        start([three])

    start([replace(three, shares_cores=True)])

    assert [spec.cores for spec in launcher.specs] == [(4,), (5,), (4,)]


@pytest.mark.parametrize(
    ("has_servers", "failed", "name"), [(False, 2, "two"), (True, 5, "two, worker 1")]
)
def test_a_failure_names_the_process_and_shows_its_last_lines(
    launcher, jobs, has_servers, failed, name
):
    groups = jobs if has_servers else GROUPS
    launcher.fail(failed, 7)

    error = f"{name}: rank {failed} failed with exit code 3.*\n    first line"
    with pytest.raises(BenchmarkError, match=error) as caught:
        start(groups)

    assert caught.value.exit_code == 3


def test_a_process_that_ends_before_it_reports(launcher):
    launcher.measures = False
    with pytest.raises(BenchmarkError, match="^one has ended without an error") as one:
        start(GROUPS[:1])
    assert one.value.exit_code == 2


def test_a_program_takes_its_gpu_before_it_measures(ordered, monkeypatch):
    done = []
    monkeypatch.setattr(devices, "pin", lambda *place: done.append(place))
    with TurnKeeper([1]) as keeper:
        ordered(keeper.port, 3, gpu=[1, 2])
        run_program(lambda turn, *, steps: done.append(steps))

    assert done == [(1, 2), 3]
