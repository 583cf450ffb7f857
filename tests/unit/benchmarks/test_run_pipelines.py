"""What is started and refused; nothing is measured."""

import pytest

from tfdist.benchmarks import run_input

OPTIONS = {
    "examples": 8,
    "image_size": 64,
    "batch_size": 2,
    "epochs": 5,
    "repeats": 1,
}


def test_one_process_measures_all(monkeypatch):
    names = ("naive", "sequential", "tuned", "tfdist", "cached")
    report = {
        "feeding": dict.fromkeys(names, [2.0]),
        "training": dict.fromkeys(("none", *names), [4.0]),
    }
    groups = []

    def start(of_call):
        groups.extend(of_call)
        return [[report]]

    monkeypatch.setattr("tfdist.benchmarks.run_pipelines.start", start)
    figures = run_input(3, **OPTIONS)

    [group] = groups
    assert (group.program, group.size, group.cores) == ("input", 1, 3)
    assert group.settings == {
        name: value for name, value in OPTIONS.items() if name != "epochs"
    }
    assert (figures["cores"], figures["image_size"], figures["epochs"]) == (3, 64, 5)
    assert figures["examples_per_second"]["tuned"] == 4.0


@pytest.mark.parametrize("name", ["examples", "batch_size", "epochs", "repeats"])
def test_nothing_to_measure_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1. Received: "):
        run_input(2, **OPTIONS | {name: 0})


def test_images_are_large_enough_for_the_network():
    with pytest.raises(ValueError, match="image_size must be at least 64. Received: "):
        run_input(2, **OPTIONS | {"image_size": 63})
    with pytest.raises(ValueError, match="cores must be at least 1"):
        run_input(0, **OPTIONS)
