"""Which processes are started, where, and how their reports come back."""

import json
from pathlib import Path

import pytest

from tfdist.benchmarks import start as start_module
from tfdist.benchmarks.program import report_file
from tfdist.benchmarks.start import BenchmarkError, Group, start
from tfdist.cluster import tf_config
from tfdist.launch import Exit, RunResult

GROUPS = [
    Group("one", "training", {"batch_size": 4}),
    Group("two", "training", {"batch_size": 8}, size=2),
    Group("apart", "training", {"batch_size": 4}, size=2, joined=False),
]


class FakeLauncher:
    """Leaves in place of each process what it was ordered to do."""

    def __init__(self):
        self.specs = []
        self.result = RunResult(tuple(Exit(rank, 0, 1.0) for rank in range(5)))

    def __call__(self, specs, **options):
        self.specs, self.options = specs, options
        for spec, orders in zip(specs, self.orders, strict=True):
            file = report_file(Path(orders["folder"]), orders["process"])
            file.write_text(json.dumps([spec.rank, orders["settings"]["batch_size"]]))
        return self.result

    @property
    def orders(self):
        return [json.loads(spec.argv[-1]) for spec in self.specs]


@pytest.fixture(autouse=True)
def launcher(monkeypatch):
    launcher = FakeLauncher()
    monkeypatch.setattr(start_module, "run", launcher)
    monkeypatch.setattr(start_module, "available_cores", lambda: (4, 5))
    return launcher


def test_reports_come_back_by_group_and_rank():
    assert start(GROUPS) == [[[0, 4]], [[1, 8], [2, 8]], [[3, 4], [4, 4]]]


def test_all_groups_share_the_same_cores_with_one_thread_each(launcher):
    start(GROUPS)

    assert [spec.cores for spec in launcher.specs] == [(4,), (4,), (5,), (4,), (5,)]
    assert {spec.env["OMP_NUM_THREADS"] for spec in launcher.specs} == {"1"}
    assert [orders["group"] for orders in launcher.orders] == [0, 1, 1, 2, 2]


def test_a_process_may_have_several_cores(launcher):
    start([Group("wide", "input", {"batch_size": 4}, cores=2)])

    [spec] = launcher.specs
    assert spec.cores == (4, 5)
    assert spec.env["OMP_NUM_THREADS"] == "2"


def test_only_a_joined_group_is_one_job(launcher):
    start(GROUPS)

    clusters = [tf_config.loads(spec.env["TF_CONFIG"]) for spec in launcher.specs]
    assert [cluster.size for cluster in clusters] == [1, 2, 2, 1, 1]
    assert [cluster.rank for cluster in clusters] == [0, 0, 1, 0, 0]
    assert clusters[1].addresses == clusters[2].addresses
    assert clusters[3].addresses != clusters[4].addresses


def test_a_job_of_horovod_is_told_so_and_stopped_between_its_turns(launcher):
    groups = [
        Group("one", "training", {"batch_size": 1}),
        *(
            Group(
                name,
                "training",
                {"batch_size": size},
                size,
                collective="horovod",
                env={"OF_ALL": name},
            )
            for name, size in (("alone", 1), ("both", 2))
        ),
    ]

    start(groups)

    first, alone, *both = launcher.specs
    assert "HOROVOD_SIZE" not in first.env
    assert [spec.env["HOROVOD_SIZE"] for spec in (alone, *both)] == ["1", "2", "2"]
    ports = [spec.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] for spec in (alone, *both)]
    assert ports[0] != ports[1] == ports[2]
    names = [spec.env.get("OF_ALL") for spec in launcher.specs]
    assert names == [None, "alone", "both", "both"]
    stopped = [orders["is_stopped"] for orders in launcher.orders]
    assert stopped == [False, True, True, True]


def test_the_output_of_the_processes_is_not_shown(launcher):
    start(GROUPS)

    assert launcher.options["output"].console is False


def test_more_processes_than_cores(launcher):
    error = r"core for each process \(-np\). Received: 3 processes and 2 cores"
    with pytest.raises(ValueError, match=error):
        start([Group("three", "allreduce", {}, size=3)])

    assert launcher.specs == []


def test_a_failure_names_the_group_and_shows_the_last_lines(launcher):
    exits = [Exit(rank, -15, 2.0) for rank in range(5)]
    exits[2] = Exit(2, 3, 1.0, ("one", "two"))
    launcher.result = RunResult(tuple(exits), "failed", failed_rank=2)

    with pytest.raises(BenchmarkError, match="two: rank 2 failed.*\n    one") as caught:
        start(GROUPS)

    assert caught.value.exit_code == 3


def test_an_interrupt_is_told_in_one_line(launcher):
    exits = tuple(Exit(rank, -2, 2.0) for rank in range(5))
    launcher.result = RunResult(exits, "signal", "SIGINT")

    with pytest.raises(BenchmarkError, match="SIGINT ended the run") as caught:
        start(GROUPS)

    assert caught.value.exit_code == 130
