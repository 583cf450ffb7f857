"""Texts that are no TF_CONFIG, as `show` refuses them and as `check` explains them."""

import json

import pytest

from tfdist_cli.main import main

WORKERS = {"worker": ["a:1"]}
FIRST = {"type": "worker", "index": 0}

# FIRST stands for the task below.
TEXTS = [
    (
        '{"cluster": {"worker": ["a:1"]}, "task": {}',
        "is not valid JSON at line 1, column 44: Expecting ',' delimiter.",
    ),
    (
        "{'cluster': {'worker': ['a:1']}}",
        "is not valid JSON at line 1, column 2: Expecting property name enclosed in",
    ),
    (
        '{"cluster": {"worker": ["a:1",]}, "task": {}}',
        "is not valid JSON at line 1, column 31: Expecting value.",
    ),
    (
        '{"cluster": {"worker": ["a:1"]}} {"task": {}}',
        "is not valid JSON at line 1, column 34: Extra data.",
    ),
    ('"{\\"cluster\\": {}}"', "must be a JSON object."),
    ("[]", "must be a JSON object."),
    ("null", "must be a JSON object."),
    ("true", "must be a JSON object."),
    ("7", "must be a JSON object."),
    (
        "node1:2222,node2:2222",
        "is not valid JSON at line 1, column 1: Expecting value.",
    ),
    ("tf_config.json", "is not valid JSON at line 1, column 1: Expecting value."),
    (
        "\ufeff{}",
        "is not valid JSON at line 1, column 1: Unexpected UTF-8 BOM (decode using",
    ),
    ("'{}'", "is not valid JSON at line 1, column 1: Expecting value."),
    ("[" * 100_000, "cannot be read as JSON."),
    ("NaN", "must be a JSON object."),
    ('{"cluster": {"worker": ["a:1"]}}', 'has no "task".'),
    ('{"task": {"type": "worker", "index": 0}}', 'has no "cluster".'),
    (
        '{"clusters": {"worker": ["a:1"]}, "task": FIRST}',
        'has an unknown key "clusters".',
    ),
    (
        '{"CLUSTER": {"worker": ["a:1"]}, "task": FIRST}',
        'has an unknown key "CLUSTER".',
    ),
    (
        '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": FIRST}',
        'has the key "worker" more than once in one object.',
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": FIRST, "tasks": 2}',
        'has an unknown key "tasks".',
    ),
    (
        '{"cluster": {"worker": ["a:1"]}, "task": FIRST, "rpc_layer": "mpi"}',
        'rpc_layer must be "grpc".',
    ),
    (
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
        "cluster has nobody who trains, neither a chief nor a worker.",
    ),
    (
        '{"sparseCluster": {"worker": {"0": "a:1"}}, "task": FIRST}',
        "cluster is sparse: it leaves out the other workers.",
    ),
    ('{"cluster": ' * 60 + "1" + "}" * 60, "cannot be read as JSON."),
    ('{"task": ' + "9" * 5000 + "}", "cannot be read as JSON."),
]
# With the task FIRST.
CLUSTERS = [
    ([], "cluster must be a JSON object."),
    ({}, "cluster has no addresses at all."),
    ({"worker": []}, "cluster.worker is an empty list."),
    ({"workers": ["a:1", "b:1"]}, 'cluster has an unknown job "workers".'),
    ({"worker": ["a:1"], "gpu": ["b:1"]}, 'cluster has an unknown job "gpu".'),
    (
        {"worker": "a:1,b:1"},
        "cluster.worker must be a list, also for a single address.",
    ),
    ({"worker": {"0": "a:1"}}, 'cluster.worker must be a list of "host:port" strings.'),
    ({"worker": ["a:1", 2]}, 'cluster.worker must be a list of "host:port" strings.'),
    (
        {"chief": ["a:1", "b:1"], "worker": ["c:1"]},
        "cluster.chief has more than one address, but a cluster has one chief.",
    ),
    (
        {"chief": ["a:1"], "master": ["b:1"], "worker": ["c:1"]},
        "cluster has both a chief and a master, two words for one job.",
    ),
    ({"worker": ["a"]}, "cluster.worker[0] has no port."),
    ({"worker": [":1"]}, "cluster.worker[0] has no host."),
    ({"worker": ["a:0"]}, "cluster.worker[0] must end in a port from 1 to 65535."),
    ({"worker": ["a:65536"]}, "cluster.worker[0] must end in a port from 1 to 65535."),
    ({"worker": ["a:ssh"]}, "cluster.worker[0] must end in a port from 1 to 65535."),
    (
        {"worker": ["a:\u0662\u0662"]},
        "cluster.worker[0] must end in a port from 1 to 65535.",
    ),
    (
        {"worker": ["a:2222222222222222222222222222222222222222"]},
        "cluster.worker[0] must end in a port from 1 to 65535.",
    ),
    ({"worker": ["http://a:1"]}, 'cluster.worker[0] must be one bare "host:port".'),
    ({"worker": ["a:1 "]}, 'cluster.worker[0] must be one bare "host:port".'),
    ({"worker": ["a:1,b:1"]}, 'cluster.worker[0] must be one bare "host:port".'),
    (
        {"worker": ["::1:2222"]},
        "cluster.worker[0] must have a single colon, or an IPv6 host in brackets.",
    ),
    (
        {"worker": ["[a]:1"]},
        "cluster.worker[0] must have an IPv6 address in its brackets.",
    ),
    (
        {"worker": ["a:1", "a:1"]},
        "cluster.worker[1] has the same address as cluster.worker[0].",
    ),
    (
        {"worker": ["localhost:1", "a:1"]},
        "cluster.worker[0] is on localhost, where processes on other hosts cannot",
    ),
    (
        {"worker": ["a:1", "127.0.0.1:1"]},
        "cluster.worker[1] is on 127.0.0.1, where processes on other hosts cannot",
    ),
]
# In the cluster WORKERS.
TASKS = [
    ([], "task must be a JSON object."),
    ({"index": 0}, 'task has no "type".'),
    ({"type": "worker"}, 'task has no "index".'),
    ({"type": "worker", "index": 0, "rank": 1}, 'task has an unknown key "rank".'),
    (
        {"type": "trainer", "index": 0},
        "task.type must be one of chief, worker, ps, evaluator.",
    ),
    ({"type": 0, "index": 0}, "task.type must be one of chief, worker, ps, evaluator."),
    (
        {"type": ["worker"], "index": 0},
        "task.type must be one of chief, worker, ps, evaluator.",
    ),
    (
        {"type": "chief", "index": 0},
        "task.type names a job that the cluster does not have.",
    ),
    ({"type": "worker", "index": "0"}, "task.index must be an integer."),
    ({"type": "worker", "index": 0.0}, "task.index must be an integer."),
    ({"type": "worker", "index": True}, "task.index must be an integer."),
    ({"type": "worker", "index": -1}, "task.index must not be negative."),
    (
        {"type": "worker", "index": 1},
        "task.index must be from 0 to 0, as cluster.worker has no more addresses.",
    ),
    ({"type": "worker", "index": None}, "task.index must be an integer."),
]
# Files that hold something else.
FILES = [
    (b"", "is empty."),
    (b"  \n", "is empty."),
    (b"{}\n{}", "is not valid JSON at line 2, column 1: Extra data."),
    (b"# comment\n{}", "is not valid JSON at line 1, column 1: Expecting value."),
    (b"export TF_CONFIG={}", "is not valid JSON at line 1, column 1: Expecting value."),
    (b"cluster:\n  worker: []\n", "is not valid JSON at line 1, column 1: Expecting"),
    (b"<html>", "is not valid JSON at line 1, column 1: Expecting value."),
    (b"\x00", "is not valid JSON at line 1, column 1: Expecting value."),
    (b"\xff\xfe{\x00}\x00", "is not valid JSON at line 1, column 1: Expecting value."),
    (b"\x1f\x8b\x08\x00", "is not valid JSON at line 1, column 1: Expecting value."),
]
ROWS = [
    *((text.replace("FIRST", json.dumps(FIRST)), problem) for text, problem in TEXTS),
    *(
        (json.dumps({"cluster": cluster, "task": FIRST}), problem)
        for cluster, problem in CLUSTERS
    ),
    *(
        (json.dumps({"cluster": WORKERS, "task": task}), problem)
        for task, problem in TASKS
    ),
]


@pytest.mark.parametrize(("text", "problem"), ROWS)
def test_the_variable_is_refused(text, problem, refusal):
    assert refusal("config", "show", TF_CONFIG=text).startswith(f"TF_CONFIG {problem}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [*((text.encode(), problem) for text, problem in ROWS), *FILES],
)
def test_a_file_has_this_one_error(content, problem, tmp_path, capsys):
    file = tmp_path / "tf_config.json"
    file.write_bytes(content)

    code = main(["config", "check", str(file)])
    out = capsys.readouterr().out

    assert code == 1
    assert out.startswith(f"error: TF_CONFIG {problem}")
    assert " Received:" in out
    assert "\n  Why: " in out
    assert "\n  Fix: " in out
    assert out.endswith("\nTF_CONFIG has 1 error.\n")


def test_no_two_are_refused_in_the_same_words(refusal):
    messages = [refusal("config", "show", TF_CONFIG=text) for text, _ in ROWS]

    assert len({*messages}) == len(messages)
