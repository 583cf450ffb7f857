"""Which processes jobs with servers have, and how their reports come back."""

import json
from pathlib import Path

import pytest

from tfdist.benchmarks import parameter_server_start as start_module
from tfdist.benchmarks.parameter_server_program import pid_file, warm_file
from tfdist.benchmarks.parameter_server_start import ServerJob, start_jobs
from tfdist.benchmarks.program import report_file
from tfdist.benchmarks.start import BenchmarkError
from tfdist.cluster import tf_config
from tfdist.launch import Exit, RunResult

JOBS = [
    ServerJob("one", "parameter_server", {"batch_size": 4}, workers=1, ps=1),
    ServerJob(
        "two",
        "parameter_server_loop",
        {"batch_size": 8},
        workers=2,
        ps=1,
        env={"OF_ALL": "two"},
        shares=(1.0, 0.5),
    ),
]


class FakeLauncher:
    """Leaves in place of each process what it was ordered to do."""

    def __init__(self):
        self.result = RunResult(tuple(Exit(rank, 0, 1.0) for rank in range(7)))

    def __call__(self, specs, **options):
        self.specs, self.options = specs, options
        for orders in self.orders:
            folder, process = Path(orders["folder"]), orders["process"]
            pid_file(folder, process).write_text(str(1000 + process))
            warm_file(folder, process).touch()
            report = json.dumps([process, orders["settings"]["batch_size"]])
            report_file(folder, process).write_text(report)
        self.found = [find() for find in self.finds]
        return self.result

    @property
    def orders(self):
        return [json.loads(spec.argv[-1]) for spec in self.specs]


class FakeCycle:
    """Keeps what finds the processes that are to be slowed."""

    def __init__(self, launcher, find):
        launcher.finds.append(find)
        launcher.found.append(find())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture(autouse=True)
def launcher(monkeypatch):
    launcher = FakeLauncher()
    launcher.finds, launcher.found = [], []
    monkeypatch.setattr(start_module, "run", launcher)
    monkeypatch.setattr(
        start_module, "DutyCycle", lambda find: FakeCycle(launcher, find)
    )
    return launcher


def test_reports_come_from_the_chiefs():
    assert start_jobs(JOBS) == [[0, 4], [3, 8]]


def test_each_job_is_a_cluster_of_its_own(launcher):
    start_jobs(JOBS)

    clusters = [tf_config.loads(spec.env["TF_CONFIG"]) for spec in launcher.specs]
    assert [str(cluster.task) for cluster in clusters] == [
        *("chief 0", "worker 0", "ps 0"),
        *("chief 0", "worker 0", "worker 1", "ps 0"),
    ]
    assert clusters[0].chief != clusters[3].chief == clusters[4].chief
    assert [orders["group"] for orders in launcher.orders] == [0] * 3 + [1] * 4
    assert [spec.env.get("OF_ALL") for spec in launcher.specs] == [None] * 3 + [
        "two"
    ] * 4
    assert {spec.env["TF_NUM_INTRAOP_THREADS"] for spec in launcher.specs} == {"1"}


def test_no_process_may_fail_and_none_is_started_again(launcher):
    start_jobs(JOBS)

    assert {spec.task for spec in launcher.specs} == {None}
    assert [spec.rank for spec in launcher.specs] == list(range(7))


def test_workers_are_slowed_once_the_chief_measures(launcher):
    start_jobs(JOBS)

    assert launcher.found == [{1005: 0.5}]


def test_nobody_is_slowed_before(launcher, tmp_path):
    cycle = start_module._slowed(JOBS[1], tmp_path, 3)

    assert isinstance(cycle, FakeCycle)
    assert launcher.found == [None]


def test_a_failure_names_job_and_process_and_shows_the_last_lines(launcher):
    exits = [Exit(rank, -15, 2.0) for rank in range(7)]
    exits[5] = Exit(5, 3, 1.0, ("one", "two"))
    launcher.result = RunResult(tuple(exits), "failed", failed_rank=5)

    error = "two, worker 1: rank 5 failed with exit code 3.*\n    one"
    with pytest.raises(BenchmarkError, match=error) as caught:
        start_jobs(JOBS)

    assert caught.value.exit_code == 3


def test_an_interrupt_is_told_in_one_line(launcher):
    exits = tuple(Exit(rank, -2, 2.0) for rank in range(7))
    launcher.result = RunResult(exits, "signal", "SIGINT")

    with pytest.raises(BenchmarkError, match="SIGINT ended the run") as caught:
        start_jobs(JOBS)

    assert caught.value.exit_code == 130
