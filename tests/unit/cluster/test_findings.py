"""All findings about a TF_CONFIG at once."""

import json

import pytest

from tfdist.cluster.tf_config import findings

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
