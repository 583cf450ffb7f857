"""What is compared with what; no process is started."""

import pytest

from tfdist.benchmarks import run as run_module
from tfdist.benchmarks import (
    run_allreduce,
    run_backup,
    run_memory,
    run_training,
)


@pytest.fixture
def started(monkeypatch):
    """Return the groups that are started; each process reports a value of its group."""
    groups = []
    reports = {}

    def start(of_call):
        groups.extend(of_call)
        return [[reports[group.name]] * group.size for group in of_call]

    monkeypatch.setattr(run_module, "start", start)
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
    assert [(group.program, group.size) for group in groups] == [("allreduce", 2)]
    assert groups[0].settings == {"sizes_bytes": [1024, 4096], "repeats": 1}


def test_the_five_groups_of_training(started):
    groups, reports = started
    reports |= dict.fromkeys(["plain", "alone", "apart", "strong"], [[0.1]])
    reports["weak"] = [[0.2]]

    figures = run_training(3, 64, steps=5, repeats=1, compression="fp16")

    assert figures["compression"] == "fp16"
    assert {group.settings["compression"] for group in groups} == {"fp16"}
    assert figures["weak_efficiency"]["median"] == pytest.approx(0.5)
    # Batch sizes are global.
    assert [
        (
            group.name,
            group.size,
            group.joined,
            group.settings["collective"],
            group.settings["batch_size"],
        )
        for group in groups
    ] == [
        ("plain", 1, True, None, 64),
        ("alone", 1, True, "tensorflow", 64),
        ("apart", 3, False, "tensorflow", 64),
        ("weak", 3, True, "tensorflow", 192),
        ("strong", 3, True, "tensorflow", 64),
    ]


def test_the_memory_of_two_models(started):
    groups, reports = started
    mebibyte = 2**20
    reports |= {"plain": 100 * mebibyte, "distributed": 124 * mebibyte}

    figures = run_memory(2, layers=(2, 3))

    assert [model["gradient_bytes"] for model in figures["models"]] == [
        8 * mebibyte,
        12 * mebibyte,
    ]
    assert figures["models"][0]["added_times_gradients"] == 3.0
    assert figures["growth_times_gradients"] == 0.0
    assert figures["constant_bytes"] == 24 * mebibyte
    assert [group.size for group in groups] == [1, 2, 1, 2]


def test_the_four_groups_of_backups(started):
    groups, reports = started
    saves = {"hold_seconds": [0.5], "disk_seconds": [0.75], "bytes": [64]}
    reports |= dict.fromkeys(
        ("tfdist", "steps", "keras"), {"turns": [[1.5]], "saves": saves}
    )
    reports["none"] = {"turns": [[1.0]], "saves": {}}

    figures = run_backup(3, epochs=5, repeats=1)

    assert figures["cost"]["tfdist"]["median"] == 0.5
    assert figures["saves"]["steps"]["bytes"] == 64
    assert {(group.program, group.size, group.joined) for group in groups} == {
        ("backup", 3, True)
    }
    own = {
        group.name: (group.settings["backup"], group.settings["save_freq"])
        for group in groups
    }
    assert own == {
        "none": (None, "epoch"),
        "tfdist": ("tfdist", "epoch"),
        "steps": ("tfdist", 10),
        "keras": ("keras", "epoch"),
    }
    # 32 examples of each process.
    common = {"batch_size": 96, "epochs": 5, "repeats": 1}
    assert all(common.items() <= group.settings.items() for group in groups)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: run_allreduce(1, [4], repeats=1), r"size \(-np\) must be at least 2"),
        (lambda: run_allreduce(2, [4], repeats=0), "repeats must be at least 1"),
        (lambda: run_training(0, 64, steps=2, repeats=1), "Received: size=0"),
        (lambda: run_training(2, 0, steps=2, repeats=1), "batch_size must be at least"),
        (lambda: run_training(2, 64, steps=1, repeats=1), "steps must be at least 2"),
        (lambda: run_training(2, 64, steps=2, repeats=-1), "Received: repeats=-1"),
        (lambda: run_memory(1), "One process alone is measured"),
        (lambda: run_backup(1, epochs=2, repeats=1), r"size \(-np\) must be at least"),
        (lambda: run_backup(2, epochs=1, repeats=1), "epochs must be at least 2"),
        (lambda: run_backup(2, epochs=2, repeats=0), "Received: repeats=0"),
    ],
)
def test_what_is_refused(started, call, error):
    groups, _ = started

    with pytest.raises(ValueError, match=error):
        call()

    assert groups == []
