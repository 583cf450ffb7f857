import json
import os
import re
import subprocess

import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.tf_config import FORMATS, findings, format_tf_config, loads
from tfdist.cluster.validation import EFFECTS

WORKERS = ["a:2222", "b:2222"]
TASK = {"type": "worker", "index": 0}


def text(cluster, task, **others):
    return json.dumps({"cluster": cluster, "task": task, **others})


def jobs(**addresses):
    return text(addresses, TASK)


def task(**keys):
    return text({"worker": WORKERS}, keys)


# What is wrong: the text, and the beginning of the error, with gaps.
MALFORMED = {
    "single quotes": (
        "{'cluster': {}}",
        "is not valid JSON: Expecting property name enclosed in double quotes: line 1"
        " ... Received: \"{'cluster': {}}\". ... names in double quotes",
    ),
    "job twice": (
        '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}',
        'is not valid JSON: the key "worker" is repeated in one object. Received: \''
        '{"cluster" ... Write it with json.dumps()',
    ),
    "nested too deep": (
        "[" * 200_000,
        "is not valid JSON: its ... Received: '[[ ... Write it",
    ),
    "a number of thousands of digits": (
        "9" * 5000,
        "is not ... Received: '99 ... Writ",
    ),
    "quoted twice": (
        '"{}"',
        "must be a JSON object. Received: '\"{}\"'. Write it with",
    ),
    "rpc_layer": (
        text({"worker": WORKERS}, TASK, rpc_layer="grpc+verbs"),
        'rpc_layer must be "grpc". Received: "grpc+verbs". Leave rpc_layer out.',
    ),
    "another key": (
        text({"worker": WORKERS}, TASK, session_master="grpc://a:1"),
        'has an unknown key "session_master". Received: cluster, task, session_master.'
        " Leave it out, or use one of: cluster, task,",
    ),
    "no task": (
        json.dumps({"cluster": {"worker": WORKERS}}),
        'must have an object "task". Received: only cluster. '
        'Add "task": {"type": "worker", "index": 0}, or unset',
    ),
    "cluster a list": (
        text(WORKERS, TASK),
        'must have an object "cluster". Received: ["a:2222", "b:2222"]. '
        'Add "cluster": {"worker": ["node1:2222", "node2:2222"]}, or unset',
    ),
    # Kubeflow's, of workers that come and go.
    "only a sparse cluster": (
        json.dumps({"sparseCluster": {"worker": {"0": "a:1"}}, "task": TASK}),
        'must have an object "cluster". Received: only sparseCluster, task. Add "clust',
    ),
    "no addresses": (
        text({}, TASK),
        "cluster lacks the addresses of workers. Received: {}. ... to train alone.",
    ),
    "an empty list of workers": (
        text({"chief": ["c:1"], "worker": []}, {"type": "chief", "index": 0}),
        "cluster lacks the addresses of workers. "
        'Received: {"chief": ["c:1"], "worker": []}. Write it as',
    ),
    "two chiefs": (
        jobs(chief=["c:1"], master=["d:1"], worker=WORKERS),
        "cluster has several chiefs. Received: c:1, d:1. Make the others workers.",
    ),
    "job a string": (
        jobs(worker="a:1,b:1"),
        'cluster.worker must be a list of "host:port" strings. Received: "a:1,b:1". '
        'Write it as ["node1:2222", "node2:2222"].',
    ),
    "address a number": (
        jobs(worker=["a:1", 2222]),
        'cluster.worker must be a list of "host:port" strings. Received: ["a:1", 2222]',
    ),
    "no index": (
        task(type="worker"),
        'task has no "index". Received: {"type": "worker"}. '
        'Write it as {"type": "worker", "index": 0}.',
    ),
    "unknown type": (
        task(type="workers", index=0),
        "task.type must be one of chief, worker, ps, evaluator. "
        "Received: type='workers'. Use 'chief' for",
    ),
    "index out of range": (
        task(type="worker", index=2),
        "task.index must be from 0 to 1, as cluster.worker has no more addresses. "
        "Received: index=2. Count from 0, and list every process of the job.",
    ),
}


@pytest.mark.parametrize(("malformed", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_a_mistake_is_one_finding_and_one_error(malformed, expected):
    (finding,) = findings(malformed)

    with pytest.raises(ValueError, match=r"^TF_CONFIG .*Received: ") as error:
        loads(malformed)

    assert str(error.value) == f"TF_CONFIG {finding.message}"
    pattern = ".*".join(map(re.escape, expected.split(" ... ")))
    assert re.match(pattern, finding.message, re.DOTALL)
    assert finding.severity == "error"
    assert finding.effect in EFFECTS
    assert len(finding.message) < 700


def test_all_mistakes_are_found_at_once():
    cluster = {"worker": ["a:1", "b", "a:1", "localhost:3"], "x": []}
    config = text(cluster, {"type": "boss", "idex": "7"}, rpc_layer="mpi")

    assert [(each.place, each.effect) for each in findings(config)] == [
        ("rpc_layer", "refused"),
        ("cluster", "not used"),
        ("task", "not used"),
        ("task", "wrong rank"),
        ("task.type", "refused"),
        ("cluster.worker[1]", "not reachable"),
        ("cluster.worker[2]", "hang"),
        ("cluster.worker[3]", "not reachable"),
    ]
    misspelt = json.dumps({"clusters": {"worker": WORKERS}, "task": TASK})
    assert [each.effect for each in findings(misspelt)] == ["not used", "trains alone"]


def test_warnings_follow_only_if_there_is_no_error():
    doubtful = {"cluster": {"worker": ["a:40000"]}, "task": TASK}

    effects = [each.effect for each in findings(json.dumps(doubtful))]
    assert effects == ["trains alone", "port taken"]
    effects = [each.effect for each in findings(json.dumps({**doubtful, "tasks": 0}))]
    assert effects == ["not used"]


@pytest.mark.parametrize("chief", ["master", "chief"])
def test_all_four_jobs_are_read(chief):
    full = {chief: ["c:1"], "worker": WORKERS, "ps": ["p:1"], "evaluator": ["e:1"]}
    addresses = {"chief": "c:1", "workers": (*WORKERS,), "ps": ("p:1",)}

    for name, index in {chief: 0, "worker": 1, "ps": 0, "evaluator": 0}.items():
        own = Task("chief" if name == chief else name, index)
        cluster = loads(text(full, {"type": name, "index": index}))
        assert cluster == Cluster(**addresses, evaluators=("e:1",), task=own)


def test_additions_of_schedulers_are_accepted():
    sparse = {"sparseCluster": {"worker": {"0": "a:1"}}}
    empty = {"ps": [], "chief": [], "evaluator": []}
    config = text(
        {"worker": WORKERS, **empty, **sparse},
        {**TASK, "trial": "3", "cloud": "w93a1503672d4dd09-ml"},
        environment="cloud",
        job={"worker_count": 1},
        rpc_layer="grpc",
        **sparse,
    )

    assert loads(config) == Cluster(workers=(*WORKERS,))
    assert findings(config) == ()


O_NEIL = '{"cluster": {"worker": ["o\'neil:1", "$HOME:2"]}}'


@pytest.mark.parametrize(
    "script", ["{shell}\nprintenv TF_CONFIG", "{env} printenv TF_CONFIG"]
)
def test_a_shell_reads_the_value_unchanged(script):
    lines = {to: format_tf_config(O_NEIL, to) for to in FORMATS}
    done = subprocess.run(
        ["sh", "-c", script.format_map(lines)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )

    assert done.stdout == f"{O_NEIL}\n"
    assert lines["dotenv"] == f"TF_CONFIG={O_NEIL}"
