"""The groups of processes that the all-reduce compares; none is started."""

import pytest

from tfdist.benchmarks import allreduce, run_allreduce


@pytest.fixture
def started(monkeypatch):
    """Return the groups that are started, and the reports of each process by group."""
    groups, reports = [], {}

    def start(of_call):
        groups.extend(of_call)
        return [[reports[group.name]] * group.reporters for group in of_call]

    monkeypatch.setattr(allreduce, "start", start)
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


def test_one_process_is_refused(started):
    with pytest.raises(ValueError, match="size must be at least 2.*size=1"):
        run_allreduce(1, [4], repeats=1)

    assert started[0] == []
