"""Everything wrong with a TF_CONFIG, compared with what `loads` makes of it."""

import copy
import json
import random
import string

import pytest

from tfdist.cluster.tf_config import findings, loads
from tfdist.cluster.validation import EFFECTS, ERROR

GOOD = (
    {
        "cluster": {"worker": ["a:2222", "b:2222"]},
        "task": {"type": "worker", "index": 1},
    },
    {
        "cluster": {
            "chief": ["c:2222"],
            "worker": ["a:2222", "a:2223", "[fe80::1]:2222"],
            "ps": ["p:2222"],
        },
        "task": {"type": "ps", "index": 0},
        "rpc_layer": "grpc",
        "environment": "cloud",
    },
    {
        "cluster": {"master": ["localhost:1"], "worker": ["127.0.0.1:2"]},
        "task": {"type": "master", "index": 0, "trial": "1"},
        "job": {"scale": {"tier": [1, 2]}},
    },
    {"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 2}},
)

# What a place of a good one is replaced with.
VALUES = (
    None,
    True,
    -1,
    0,
    1,
    7,
    0.5,
    1e999,
    10**30,
    "",
    " ",
    "a:2222",
    "a",
    ":1",
    "::1",
    "[::1]:1",
    "[x]:1",
    "localhost:9",
    "a:0",
    "a:1,b:1",
    "worker",
    "master",
    "evaluator",
    "\ud800:1",
    "\u0000",
    [],
    ["a:1"],
    [None],
    [["a:1"]],
    {},
    {"0": "a:1"},
    {"worker": ["a:1"]},
    {"type": "worker", "index": 0},
)
KEYS = (
    "cluster",
    "clusters",
    "task",
    "Task",
    "worker",
    "workers",
    "chief",
    "master",
    "ps",
    "evaluator",
    "sparseCluster",
    "type",
    "index",
    "idx",
    "rpc_layer",
    "x",
    "",
    "\ud800",
)


def places(value):
    """Return every object and list within a value, itself included."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return []
    return [value, *(place for each in inner for place in places(each))]


def any_value(chance):
    """Return a value of its own, as it may be changed in its turn."""
    return copy.deepcopy(chance.choice(VALUES))


def change(config, chance):
    """Make one change somewhere in a configuration."""
    place = chance.choice(places(config))
    if isinstance(place, list):
        position = chance.randrange(len(place) + 1)
        width = chance.randrange(2)
        place[position : position + width] = [any_value(chance)]
    elif place and chance.random() < 0.7:
        key = chance.choice([*place])
        value = place.pop(key)
        kind = chance.randrange(3)
        if kind:
            name = key if kind == 1 else chance.choice(KEYS)
            place[name] = any_value(chance) if kind == 1 else value
    else:
        place[chance.choice(KEYS)] = any_value(chance)


def mutate_text(text, chance):
    """Take out, put in or double some characters."""
    start = chance.randrange(len(text) + 1)
    end = min(len(text), start + chance.randrange(12))
    inserted = chance.choice(
        ["", text[start:end] * 2, *'{}[]",:\\ \n', chance.choice(string.printable)]
    )
    return text[:start] + inserted + text[end:]


def mutated_texts(seed, count):
    """Yield texts that are wrong in one to four ways, or by chance still right."""
    chance = random.Random(seed)
    for _ in range(count):
        config = json.loads(json.dumps(chance.choice(GOOD)))
        for _ in range(chance.randint(1, 3)):
            change(config, chance)
        text = json.dumps(config)
        yield mutate_text(text, chance) if chance.random() < 0.2 else text


def first_error(text):
    """Return what `loads` raises, None if nothing; fail on any other exception."""
    try:
        loads(text)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("seed", range(8))
def test_there_is_an_error_if_and_only_if_it_cannot_be_read(seed):
    outcomes = {True: 0, False: 0}
    for text in mutated_texts(seed, 500):
        found = findings(text)
        errors = [finding for finding in found if finding.severity == ERROR]
        expected = f"TF_CONFIG {errors[0].message}" if errors else None

        assert first_error(text) == expected, text
        assert {finding.effect for finding in found} <= set(EFFECTS)
        assert len(found) == len(set(found)), text
        outcomes[bool(errors)] += 1

    # It would not be a test if nearly all were right, or wrong.
    assert min(outcomes.values()) > 20


@pytest.mark.parametrize("config", GOOD[:3])
def test_the_good_ones_are_good(config):
    assert findings(json.dumps(config)) == ()


def test_everything_is_told_at_once():
    text = json.dumps(
        {
            "cluster": {"worker": ["a:1", "b", "a:1", "localhost:3"], "x": []},
            "task": {"type": "boss", "idex": "7"},
            "rpc_layer": "mpi",
        }
    )

    assert [(each.place, each.effect) for each in findings(text)] == [
        ("rpc_layer", "refused"),
        ("cluster", "refused"),
        ("task", "wrong rank"),
        ("task.type", "refused"),
        ("cluster.worker[1]", "not reachable"),
        ("cluster.worker[2]", "hang"),
        ("cluster.worker[3]", "not reachable"),
    ]


def test_warnings_come_once_there_is_no_error():
    good = {"cluster": {"worker": ["a:40000"]}, "task": {"type": "worker", "index": 0}}
    bad = {**good, "tasks": 0}

    assert [each.effect for each in findings(json.dumps(good))] == [
        "trains alone",
        "port taken",
    ]
    assert [each.effect for each in findings(json.dumps(bad))] == ["not used"]


def test_names_are_looked_up_also_beside_errors():
    def look_up(host):
        raise OSError(f"no {host}")

    text = json.dumps({"cluster": {"worker": ["a:1", "b"]}, "task": {}})
    found = findings(text, look_up=look_up)

    assert [(each.severity, each.place) for each in found] == [
        ("error", "task"),
        ("error", "task"),
        ("error", "cluster.worker[1]"),
        ("warning", "cluster.worker[0]"),
    ]


def test_an_empty_object_is_right():
    assert findings("{}") == ()
