"""Values of CLUSTER_SPEC that describe no job of Vertex AI."""

import json

import pytest

SPEC = {
    "cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]},
    "task": {"type": "workerpool1", "index": 0},
}

# Values of CLUSTER_SPEC.
TEXTS = [
    (
        '{"workerpool0"',
        "is not valid JSON: Expecting ':' delimiter at line 1, column 15.",
    ),
    ('"workerpool0"', "must be a JSON object."),
    ('["workerpool0"]', "must be a JSON object."),
    ('{"workerpool0": []}', 'must have an object "cluster".'),
    ('{"cluster": "workerpool0"}', 'must have an object "cluster".'),
    ('{"cluster": {"workerpool0": ["a:1"]}}', 'must have an object "task".'),
    (
        '{"cluster": {"workerpool0": ["a:1"]}, "cluster": {}}',
        "is not valid JSON: a key stands more than once in one object.",
    ),
    (
        '{"workerpool0": ' + "9" * 5000 + "}",
        "is not valid JSON: a number has more than 18 digits.",
    ),
    (
        '{"workerpool0": ' + "[" * 100_000,
        "is not valid JSON: its brackets are nested too deep.",
    ),
    (
        '{"workerpool0": "' + "a" * 5000,
        "is not valid JSON: Unterminated string starting at at line 1",
    ),
]
# What is changed in SPEC.
SPECS = [
    (
        {"cluster": {"workerpool0": ["a:1"], "workerpool4": ["b:1"]}},
        "cluster has a worker pool that is no part of training.",
    ),
    (
        {"cluster": {"workerpool0": "a:1"}},
        'cluster.workerpool0 must be a list of "host:port" strings.',
    ),
    (
        {"cluster": {"workerpool0": [1]}},
        'cluster.workerpool0 must be a list of "host:port" strings.',
    ),
    (
        {"cluster": {"workerpool1": ["b:1"]}},
        "cluster.workerpool0 must have one address, the chief's.",
    ),
    (
        {"cluster": {"workerpool0": ["a:1", "b:1"]}},
        "cluster.workerpool0 must have one address, the chief's.",
    ),
    ({"cluster": {"workerpool0": ["a"]}}, "cluster.workerpool0[0] has no port."),
    (
        {"cluster": {"workerpool0": ["a:1"], "workerpool1": ["a:1"]}},
        "cluster.workerpool1[0] has the same address as",
    ),
    (
        {
            "cluster": {**SPEC["cluster"], "workerpool2": ["c:1"]},
            "task": {"type": "workerpool2", "index": 0},
            "job": "reductionserver",
        },
        "This replica is a reducer of Reduction Server, which does not train.",
    ),
    (
        {"task": {"type": "worker", "index": 0}},
        "task.type must be one of the worker pools of the cluster.",
    ),
    (
        {"task": {"index": 0}},
        "task.type must be one of the worker pools of the cluster.",
    ),
    (
        {"task": {"type": "workerpool2", "index": 0}},
        "task.type must be one of the worker pools of the cluster.",
    ),
    (
        {"task": {"type": "workerpool1"}},
        "task.index must be from 0 to 0, as cluster.workerpool1 has no",
    ),
    (
        {"task": {"type": "workerpool1", "index": "0"}},
        "task.index must be from 0 to 0, as cluster.workerpool1 has no",
    ),
    (
        {"task": {"type": "workerpool1", "index": 1}},
        "task.index must be from 0 to 0, as cluster.workerpool1 has no",
    ),
    (
        {"task": {"type": "workerpool1", "index": True}},
        "task.index must be from 0 to 0, as cluster.workerpool1 has no",
    ),
    (
        {"task": {"type": "workerpool1", "index": -1}},
        "task.index must be from 0 to 0, as cluster.workerpool1 has no",
    ),
]
ROWS = [
    *TEXTS,
    *((json.dumps(SPEC | changes), problem) for changes, problem in SPECS),
]


@pytest.mark.parametrize(("text", "problem"), ROWS)
def test_cluster_spec(text, problem, refusal):
    assert problem in refusal("config", "show", CLUSTER_SPEC=text)


def test_no_two_are_refused_in_the_same_words(refusal):
    messages = [refusal("config", "show", CLUSTER_SPEC=text) for text, _ in ROWS]

    assert len({*messages}) == len(messages)
