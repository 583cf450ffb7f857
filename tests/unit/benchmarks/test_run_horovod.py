"""What is compared with what on Horovod; no process is started."""

import pytest

from tfdist.benchmarks import run_horovod, run_horovod_allreduce, run_horovod_training


@pytest.fixture
def started(monkeypatch):
    """Return the groups that are started; each process reports a value of its group."""
    groups = []
    reports = {}

    def start(of_call):
        groups.extend(of_call)
        return [[reports[group.name]] * group.size for group in of_call]

    monkeypatch.setattr(run_horovod, "start", start)
    return groups, reports


@pytest.fixture
def installed(monkeypatch):
    """Return the names of the packages that are found, to be added to."""
    names = set()
    monkeypatch.setattr(
        run_horovod, "find_spec", lambda name: object() if name in names else None
    )
    return names


def test_the_all_reduce_of_each_size_beside_torch(started, installed):
    groups, reports = started
    installed.add("torch")
    reports["Horovod"] = [
        {"tfdist": [0.5], "graph": [1.0], "eager": [2.0]},
        {"tfdist": [2.0], "graph": [1.0], "eager": [1.0]},
    ]
    reports["torch"] = [{"torch": [0.25]}, {"torch": [0.75]}]

    figures = run_horovod_allreduce(2, [1024, 4096], repeats=1)

    assert [row["bytes"] for row in figures] == [1024, 4096]
    assert [row["seconds"]["torch"] for row in figures] == [0.25, 0.75]
    shares = [row["share_of_bandwidth"]["graph"]["median"] for row in figures]
    assert shares == [2.0, 0.5]
    programs = [(group.program, group.size, group.collective) for group in groups]
    assert programs == [
        ("allreduce_horovod", 2, "horovod"),
        ("allreduce_torch", 2, "tensorflow"),
    ]
    assert groups[0].settings == groups[1].settings
    assert groups[0].settings == {"sizes_bytes": [1024, 4096], "repeats": 1}


def test_the_all_reduce_without_torch(started, installed):
    groups, reports = started
    reports["Horovod"] = [{"tfdist": [0.5], "graph": [1.0], "eager": [2.0]}]

    [row] = run_horovod_allreduce(2, [4], repeats=1)

    assert set(row["seconds"]) == {"tfdist", "graph", "eager"}
    assert [group.name for group in groups] == ["Horovod"]


def test_the_four_groups_of_training(started, installed):
    groups, reports = started
    installed.add("tf_keras")
    reports |= dict.fromkeys(["alone", "their_alone"], [[0.1]])
    reports |= {"weak": [[0.2]], "their_weak": [[0.4]]}

    figures = run_horovod_training(3, 64, steps=5, repeats=1, compression="fp16")

    assert figures["compression"] == "fp16"
    assert figures["efficiency_against_theirs"]["median"] == pytest.approx(2.0)
    assert {group.settings["compression"] for group in groups} == {"fp16"}
    assert {group.collective for group in groups} == {"horovod"}
    # A batch size is global under the strategy, and of one process for Horovod's users.
    assert [
        (group.name, group.size, group.program, group.settings["batch_size"])
        for group in groups
    ] == [
        ("alone", 1, "training", 64),
        ("weak", 3, "training", 192),
        ("their_alone", 1, "training_tf_keras", 64),
        ("their_weak", 3, "training_tf_keras", 64),
    ]
    legacy = [group.env.get("TF_USE_LEGACY_KERAS") for group in groups]
    assert legacy == [None, None, "1", "1"]


def test_training_without_tf_keras(started, installed):
    groups, reports = started
    reports |= {"alone": [[0.1]], "weak": [[0.2]]}

    figures = run_horovod_training(2, 64, steps=2, repeats=1)

    assert [group.name for group in groups] == ["alone", "weak"]
    assert figures["weak_efficiency"]["median"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda: run_horovod_allreduce(1, [4], repeats=1),
            r"size \(-np\) must be at least 2",
        ),
        (lambda: run_horovod_allreduce(2, [4], repeats=0), "repeats must be at least"),
        (
            lambda: run_horovod_training(1, 64, steps=2, repeats=1),
            r"size \(-np\) must be at least 2",
        ),
        (
            lambda: run_horovod_training(2, 0, steps=2, repeats=1),
            "batch_size must be at least 1",
        ),
        (
            lambda: run_horovod_training(2, 64, steps=1, repeats=1),
            "steps must be at least 2",
        ),
        (
            lambda: run_horovod_training(2, 64, steps=2, repeats=1, compression="bf16"),
            "Horovod does not move bfloat16. Received: compression='bf16'. Use 'fp16'",
        ),
    ],
)
def test_what_is_refused(started, installed, call, error):
    groups, _ = started

    with pytest.raises(ValueError, match=error):
        call()

    assert groups == []
