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


@pytest.mark.parametrize("collective", ["tensorflow", "horovod"])
def test_the_all_reduce_of_each_size(collective, started):
    groups, reports = started
    reports[f"all-reduce, {collective}"] = [
        {"tfdist": [0.5], "other": [1.0]},
        {"tfdist": [2.0], "other": [1.0]},
    ]

    figures = run_allreduce(2, [1024, 4096], repeats=1, collective=collective)

    assert [row["bytes"] for row in figures] == [1024, 4096]
    ratios = [row["bandwidth_against"]["other"]["median"] for row in figures]
    assert ratios == [2.0, 0.5]
    [group] = groups
    assert group.settings == {
        "collective": collective,
        "sizes_bytes": [1024, 4096],
        "repeats": 1,
    }
    assert (group.collective, group.size) == (collective, 2)
    is_horovod = collective == "horovod"
    assert ("HOROVOD_GLOO_TIMEOUT_SECONDS" in group.env) == is_horovod


@pytest.mark.parametrize(
    ("installed", "against"),
    [
        ([], {"single_ring": 2.0, "memory": 0.25, "tcp": 0.5}),
        (
            ["mpi", "horovod", "torch"],
            {
                **{"tensorflow": 2.0, "single_ring": 4.0, "horovod": 8.0},
                **{"torch": 6.0, "memory": 0.5, "tcp": 1.0},
            },
        ),
    ],
)
def test_all_engines_that_are_installed(installed, against, started, monkeypatch):
    groups, reports = started
    for module in (allreduce.mpi, allreduce.horovod):
        name = module.__name__.rpartition(".")[2]
        check = (lambda: None) if name in installed else missing
        monkeypatch.setattr(module, "check_installed", check)
    monkeypatch.setattr(allreduce, "find_spec", installed.__contains__)
    for name, seconds in {"tensorflow": 1.0, "mpi": 0.5, "horovod": 4.0}.items():
        reports[f"all-reduce, {name}"] = [{"tfdist": [seconds]}]
    reports["all-reduce, tensorflow"][0]["single_ring"] = [2.0]
    reports["all-reduce, horovod"][0] |= {"graph": [4.0], "eager": [9.0]}
    reports["all-reduce, torch"] = [{"torch": [3.0]}]
    reports["all-reduce, limits"] = [{"memory": [0.25], "tcp": [0.5]}]

    [row] = run_allreduce(2, [1024], repeats=1, collective="all")

    # MPI against the others, or TensorFlow where MPI is missing.
    found = row["bandwidth_against"]
    assert {name: ratio["median"] for name, ratio in found.items()} == against
    engines = ["tensorflow", *installed, "limits"]
    assert [group.settings["collective"] for group in groups] == engines
    assert {group.collective for group in groups} == {*engines} - {"torch", "limits"}


def missing():
    raise ImportError


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
    assert all(group.pinned for group in groups)
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


def test_the_job_with_parameter_servers(started):
    jobs, reports = started
    epoch = {"seconds": 1.0, "processor_seconds": 2.0, "sent_bytes": 4000}
    reports["tfdist"] = {"epochs": [epoch], "staleness": {"0": 4}}

    setup = JobSetup(2, 3, steps=16, repeats=1, source="workers")
    figures = run_parameter_server(setup, {"consistency": "async"}, 8)
    run_parameter_server(setup, {"consistency": "sync"}, 4)

    assert (figures["workers"], figures["consistency"]) == (2, "async")
    assert figures["steps_per_second"]["median"] == 16.0
    assert {(job.workers, job.ps) for job in jobs} == {(2, 3)}
    alone, together = (job.settings for job in jobs)
    assert (alone["source"], alone["steps_per_execution"]) == ("workers", 8)
    assert (alone["batch_size"], alone["steps"]) == (64, 16)
    # In synchronous training each worker has a batch.
    assert (together["batch_size"], together["steps"]) == (128, 8)
    assert together["strategy"] == {"consistency": "sync"}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: run_allreduce(1, [4], repeats=1), "size must be at least 2.*size=1"),
        (lambda: run_training(2, 4, steps=1, repeats=1), "steps must be at least 2"),
        (
            lambda: run_training(
                2, 4, steps=2, repeats=1, collective="horovod", compression="bf16"
            ),
            "Horovod has no compression but 'fp16'. Received: compression='bf16'",
        ),
        (lambda: JobSetup(0, 1, 4, 1), "workers must be at least 1"),
        (
            lambda: run_parameter_server(JobSetup(2, 1, 10, 1), {}, 8),
            "steps must be a multiple of 8, .* Received: steps=10. Use 8.",
        ),
        (
            lambda: run_parameter_server(JobSetup(2, 1, 10, 1), {}, 0),
            "steps_per_execution must be at least 1",
        ),
    ],
)
def test_arguments_that_are_rejected(started, call, error):
    with pytest.raises(ValueError, match=error):
        call()

    assert started[0] == []
