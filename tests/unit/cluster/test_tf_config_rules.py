import json

import pytest

from tfdist.cluster.tf_config_rules import read

TASK = {"type": "worker", "index": 0}


def read_config(cluster, task, **others):
    return read(json.dumps({"cluster": cluster, "task": task, **others}))


def places(reading):
    return [mistake.place for mistake in reading.mistakes]


def test_a_right_one():
    reading = read_config({"master": ["c:1"]}, {"type": "master", "index": 0})

    assert reading.jobs == {"chief": ("c:1",)}
    assert (reading.task_type, reading.index) == ("chief", 0)
    assert reading.mistakes == ()


def test_nothing_is_worker_0():
    reading = read("{}")

    assert (reading.jobs, reading.task_type, reading.index) == ({}, "worker", 0)
    assert reading.mistakes == ()


def test_it_goes_on_with_what_was_meant():
    """One mistake in a name hides none behind it."""
    text = '{"Cluster": {"workers": ["a"]}, "tasks": {"typ": "worker", "indx": 3}}'

    assert places(read(text)) == [
        "TF_CONFIG",
        "TF_CONFIG",
        "cluster",
        "task",
        "task",
        "cluster.worker[0]",
        "task.index",
    ]


@pytest.mark.parametrize(
    ("cluster", "task"),
    [
        ({"worker": None}, {"type": "worker", "index": 5}),
        ({"chief": ["c:1"], "worker": []}, TASK),
        ({"worker": None, "ps": ["p:1"]}, {"type": "ps", "index": 0}),
        (None, TASK),
    ],
)
def test_a_task_is_not_looked_for_among_lists_that_nobody_knows(cluster, task):
    assert len(read_config(cluster, task).mistakes) == 1


@pytest.mark.parametrize(
    ("key", "config", "effect"),
    [
        ("clusters", {"task": TASK}, "trains alone"),
        ("tasks", {"cluster": {"worker": ["a:1"]}}, "wrong rank"),
        ("x", {"cluster": {"worker": ["a:1"]}, "task": TASK}, "not used"),
    ],
)
def test_what_comes_of_an_unknown_key(key, config, effect):
    other = TASK if key == "tasks" else {"worker": ["a:1"]}

    (mistake,) = read(json.dumps({**config, key: other})).mistakes

    assert mistake.effect == effect


def test_the_type_and_the_index_are_looked_at_both():
    reading = read_config({"worker": ["a:1"]}, {"type": "boss", "index": "0"})

    assert places(reading) == ["task.type", "task.index"]
