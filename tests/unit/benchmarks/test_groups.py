"""The groups of processes that each benchmark compares; none is started."""

import pytest

from tfdist.benchmarks import (
    JobSetup,
    allreduce,
    parameter_server,
    run_allreduce,
    run_parameter_server,
    run_training,
    training,
)


@pytest.fixture
def started(monkeypatch):
    """Return the groups that are started, and the reports of each process by group."""
    groups, reports = [], {}

    def start(of_call):
        groups.extend(of_call)
        return [[reports[group.name]] * group.reporters for group in of_call]

    for module in (allreduce, training, parameter_server):
        monkeypatch.setattr(module, "start", start)
    return groups, reports


def test_the_all_reduce_of_each_size(started):
    groups, reports = started
    reports["all-reduce"] = [
        {"tfdist": [0.5], "single_ring": [1.0]},
        {"tfdist": [2.0], "single_ring": [1.0]},
    ]

    figures = run_allreduce(2, [1024, 4096], repeats=1)

    assert [row["bytes"] for row in figures] == [1024, 4096]
    assert [row["times_single_ring"]["median"] for row in figures] == [2.0, 0.5]
    assert groups[0].settings == {
        "collective": "tensorflow",
        "sizes_bytes": [1024, 4096],
        "repeats": 1,
    }


def test_the_all_reduce_on_horovod(started):
    groups, reports = started
    reports["all-reduce"] = [{"tfdist": [0.5], "graph": [1.0], "eager": [0.25]}]

    [row] = run_allreduce(2, [1024], repeats=1, collective="horovod")

    assert row["share_of_bandwidth"]["graph"]["median"] == 2.0
    assert (groups[0].collective, groups[0].size) == ("horovod", 2)
    assert "HOROVOD_GLOO_TIMEOUT_SECONDS" in groups[0].env


@pytest.mark.parametrize("collective", ["tensorflow", "horovod"])
def test_the_five_groups_of_training(collective, started):
    groups, reports = started
    reports |= dict.fromkeys(["plain", "alone", "apart", "strong"], [[0.1]])
    reports["weak"] = [[0.2]]

    figures = run_training(
        3, 64, steps=5, repeats=1, collective=collective, compression="fp16"
    )

    assert figures["compression"] == "fp16"
    assert {group.settings["compression"] for group in groups} == {"fp16"}
    assert figures["weak_efficiency"]["median"] == pytest.approx(0.5)
    assert [
        (group.name, group.size, group.joined, group.settings["batch_size"])
        for group in groups
    ] == [
        ("plain", 1, True, 64),
        ("alone", 1, True, 64),
        ("apart", 3, False, 64),
        ("weak", 3, True, 192),
        ("strong", 3, True, 64),
    ]
    assert [group.settings["collective"] for group in groups] == [None] + [
        collective
    ] * 4
    assert [group.collective for group in groups] == ["tensorflow"] + [collective] * 4


EPOCH = {"seconds": 1.0, "processor_seconds": 2.0, "sent_bytes": 4000}
JOBS = ("tfdist", "tf_keras", "loop", "reading_loop")


@pytest.fixture
def jobs(started, monkeypatch):
    groups, reports = started
    reports |= dict.fromkeys(JOBS, {"epochs": [EPOCH], "staleness": {"0": 4}})
    monkeypatch.setattr(
        parameter_server, "find_spec", lambda name: name == "tf_keras" or None
    )
    return groups


def test_four_jobs_where_the_chief_reads(jobs):
    figures = run_parameter_server(JobSetup(3, 2, steps=16, repeats=1), 8)

    assert [job.name for job in jobs] == [*JOBS]
    assert {(job.workers, job.ps) for job in jobs} == {(3, 2)}
    assert [job.env for job in jobs] == [{}, {"TF_USE_LEGACY_KERAS": "1"}, {}, {}]
    assert [job.settings["source"] for job in jobs] == [
        *("chief", "workers", "chief", "workers")
    ]
    assert {job.settings["steps_per_execution"] for job in jobs} == {8}
    assert figures["speed_against"]["loop"]["median"] == 1.0
    assert (figures["workers"], figures["consistency"]) == (3, "async")


def test_three_jobs_where_workers_read(jobs):
    run_parameter_server(JobSetup(2, 1, steps=4, repeats=1, source="workers"), 1)

    assert [job.name for job in jobs] == ["tfdist", "tf_keras", "loop"]
    assert jobs[0].settings["source"] == "workers"


def test_tf_keras_may_be_missing(jobs, monkeypatch):
    monkeypatch.setattr(parameter_server, "find_spec", lambda name: None)

    figures = run_parameter_server(JobSetup(2, 1, steps=4, repeats=1), 1)

    assert "tf_keras" not in figures["jobs"]


def test_in_synchronous_training_each_worker_has_a_batch(jobs):
    run_parameter_server(JobSetup(2, 1, steps=16, repeats=1), 4, consistency="sync")

    ours, theirs = jobs[0].settings, jobs[1].settings
    assert (ours["batch_size"], ours["steps"]) == (128, 8)
    assert (theirs["batch_size"], theirs["steps"]) == (64, 16)
    assert ours["strategy"] == {"consistency": "sync", "max_staleness": None}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: run_allreduce(1, [4], repeats=1), "size must be at least 2.*size=1"),
        (lambda: run_allreduce(2, [4], repeats=0), "repeats must be at least 1"),
        (lambda: run_training(2, 4, steps=1, repeats=1), "steps must be at least 2"),
        (lambda: run_training(2, 0, steps=2, repeats=1), "batch_size must be at least"),
        (
            lambda: run_training(
                2, 4, steps=2, repeats=1, collective="horovod", compression="bf16"
            ),
            "Horovod does not move bfloat16. Received: compression='bf16'. Use 'fp16'",
        ),
        (lambda: JobSetup(0, 1, 4, 1), "workers must be at least 1"),
        (lambda: JobSetup(2, 1, 4, 0), "repeats must be at least 1"),
        (
            lambda: run_parameter_server(JobSetup(2, 1, 10, 1), 8),
            "steps must be a multiple of 8, .* Received: steps=10. Use 8.",
        ),
        (
            lambda: run_parameter_server(JobSetup(2, 1, 10, 1), 0),
            "steps_per_execution must be at least 1",
        ),
    ],
)
def test_arguments_that_are_rejected(jobs, call, error):
    with pytest.raises(ValueError, match=error):
        call()

    assert jobs == []
