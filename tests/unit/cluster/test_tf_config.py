import itertools
import json
import os
import subprocess

import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.tf_config import (
    FORMATS,
    dumps,
    findings,
    format_tf_config,
    loads,
)
from tfdist.cluster.validation import EFFECTS

WORKERS = ["a:1", "b:1"]
TASK = {"type": "worker", "index": 0}


def text(cluster, task, **others):
    return json.dumps({"cluster": cluster, "task": task, **others})


def jobs(**addresses):
    return text(addresses, TASK)


def task(**keys):
    return text({"worker": WORKERS}, keys)


# What is wrong: the text, and how the error begins, what it received, what it advises.
MALFORMED = {
    "empty": ("", "is empty.", "''", "Unset it"),
    "single quotes": (
        "{'cluster': {}}",
        "is not valid JSON at line 1, column 2: Expecting property name",
        "{'cluster': {}}",
        "names in double quotes",
    ),
    "cut off": (
        '{"cluster":\n {"worker": ["a:1"',
        "is not valid JSON at line 2, column",
        '{"worker": ["a:1"',
        "Write it with json.dumps()",
    ),
    "list": ("[]", "must be a JSON object.", "[]", "Write it as {"),
    "quoted twice": ('"{}"', "must be a JSON object.", '"{}"', "without quotes"),
    "job twice": (
        '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}}',
        'has the key "worker" more than once',
        "worker, worker",
        "Put all addresses of one job into one list.",
    ),
    "clusters": (
        json.dumps({"clusters": {"worker": WORKERS}, "task": TASK}),
        'has an unknown key "clusters".',
        "clusters, task",
        'Did you mean "cluster"?',
    ),
    "Cluster": (
        json.dumps({"Cluster": {"worker": WORKERS}, "task": TASK}),
        'has an unknown key "Cluster".',
        "Cluster, task",
        'Did you mean "cluster"?',
    ),
    "jobs without cluster": (
        json.dumps({"worker": WORKERS, "task": TASK}),
        'has an unknown key "worker".',
        "worker, task",
        "or put it into the object where it belongs.",
    ),
    "session_master": (
        text({"worker": WORKERS}, TASK, session_master="grpc://a:1"),
        'has an unknown key "session_master".',
        "cluster, task, session_master",
        "Leave it out, or",
    ),
    "rpc_layer": (
        text({"worker": WORKERS}, TASK, rpc_layer="grpc+verbs"),
        'rpc_layer must be "grpc".',
        '"grpc+verbs"',
        "Leave rpc_layer out.",
    ),
    "no cluster": (
        json.dumps({"task": TASK}),
        'has no "cluster".',
        "only task",
        'Add "cluster": {"worker": ["node1:2222", "node2:2222"]}, or unset TF_CONFIG',
    ),
    "no task": (
        json.dumps({"cluster": {"worker": WORKERS}}),
        'has no "task".',
        "only cluster",
        'Add "task": {"type": "worker", "index": 0}',
    ),
    "cluster a list": (
        text(WORKERS, TASK),
        "cluster must be a JSON object.",
        '["a:1", "b:1"]',
        'Write it as "cluster": {"worker"',
    ),
    "cluster empty": (
        text({}, {}),
        "cluster has no addresses at all.",
        "{}",
        "or unset TF_CONFIG to train alone.",
    ),
    "only sparse": (
        json.dumps({"sparseCluster": {"worker": {"0": "a:1"}}, "task": TASK}),
        "cluster is sparse: it leaves out the other workers.",
        '"sparseCluster" and no other addresses',
        "Set enableDynamicWorker to false",
    ),
    "only sparse, inside": (
        jobs(sparseCluster={"worker": {"0": "a:1"}}),
        "cluster is sparse: it leaves out the other workers.",
        '"sparseCluster" and no other addresses',
        "Set enableDynamicWorker to false",
    ),
    "workers": (
        jobs(workers=WORKERS),
        'cluster has an unknown job "workers".',
        "workers",
        'Did you mean "worker"?',
    ),
    "job like no other": (
        jobs(gateway=["c:1"], worker=WORKERS),
        'cluster has an unknown job "gateway".',
        "gateway, worker",
        "Known are: chief, worker, ps, evaluator, master",
    ),
    "two chiefs": (
        jobs(chief=["c:1", "d:1"], worker=WORKERS),
        "cluster.chief has more than one address, but a cluster has one chief.",
        '["c:1", "d:1"]',
        "Make the others workers.",
    ),
    "chief and master": (
        jobs(chief=["c:1"], master=["c:1"]),
        "cluster has both a chief and a master",
        "chief, master",
        "Leave one of them out.",
    ),
    "no worker": (
        jobs(worker=[]),
        "cluster.worker is an empty list.",
        "[]",
        "Add the workers",
    ),
    "job a string": (
        jobs(worker="a:1"),
        "cluster.worker must be a list, also for a single address.",
        '"a:1"',
        'Write it as ["a:1"].',
    ),
    "job a string with commas": (
        jobs(worker="a:1,b:1"),
        "cluster.worker must be a list, also for a single address.",
        '"a:1,b:1"',
        'Write it as ["a:1", "b:1"].',
    ),
    "job by index": (
        jobs(worker={"0": "a:1"}),
        'cluster.worker must be a list of "host:port" strings.',
        '{"0": "a:1"}',
        'Write it as ["node1:2222", "node2:2222"].',
    ),
    "address a number": (
        jobs(worker=["a:1", 2222]),
        'cluster.worker must be a list of "host:port" strings.',
        '["a:1", 2222]',
        'Write it as ["node1:2222", "node2:2222"].',
    ),
    "address twice": (
        jobs(worker=["a:1", "a:1"]),
        "cluster.worker[1] has the same address as cluster.worker[0].",
        "'a:1' twice",
        "List each process once",
    ),
    "no port": (
        jobs(worker=["a:1", "b"]),
        "cluster.worker[1] has no port.",
        "'b'",
        'Write it as "host:port"',
    ),
    "impossible port": (
        jobs(worker=["a:1", "b:65536"]),
        "cluster.worker[1] must end in a port from 1 to 65535.",
        "'b:65536'",
        "Use a port that is free",
    ),
    "no host": (
        jobs(worker=["a:1", ":1"]),
        "cluster.worker[1] has no host.",
        "':1'",
        'Write it as "host:port"',
    ),
    "URL": (
        jobs(worker=["grpc://a:1"]),
        'cluster.worker[0] must be one bare "host:port".',
        "'grpc://a:1'",
        "Leave out",
    ),
    "IPv6 without brackets": (
        jobs(worker=["::1:2222"]),
        "cluster.worker[0] must have a single colon, or an IPv6 host in brackets.",
        "'::1:2222'",
        '"[::1]:2222"',
    ),
    "localhost on two machines": (
        jobs(worker=["localhost:1", "b:1"]),
        "cluster.worker[0] is on localhost, where processes on other hosts cannot",
        "1 of 2 addresses on localhost",
        "Give every host the name by which the others reach it.",
    ),
    "nobody trains": (
        text({"ps": ["p:1"]}, {"type": "ps", "index": 0}),
        "cluster has neither a chief nor a worker",
        "only ps",
        "Add the addresses of the workers.",
    ),
    "task empty": (
        task(),
        'task has no "type".',
        "{}",
        'Write it as {"type": "worker", "index": 0}.',
    ),
    "no type": (
        task(index=0),
        'task has no "type".',
        '{"index": 0}',
        'Write it as {"type": "worker", "index": 0}.',
    ),
    "no index": (
        task(type="worker"),
        'task has no "index".',
        '{"type": "worker"}',
        'Write it as {"type": "worker", "index": 0}.',
    ),
    "task.types": (
        task(types="worker", index=0),
        'task has an unknown key "types".',
        "types, index",
        'Did you mean "type"?',
    ),
    "unknown type": (
        task(type="workers", index=0),
        "task.type must be one of chief, worker, ps, evaluator.",
        "type='workers'",
        "Use 'chief' for",
    ),
    "index a string": (
        task(type="worker", index="0"),
        "task.index must be an integer.",
        "index='0'",
        "Write a number without quotes",
    ),
    "index a boolean": (
        task(type="worker", index=True),
        "task.index must be an integer.",
        "index=True",
        "Write a number",
    ),
    "index negative": (
        task(type="worker", index=-1),
        "task.index must not be negative.",
        "index=-1",
        "Count from 0",
    ),
    "index out of range": (
        task(type="worker", index=2),
        "task.index must be from 0 to 1, as cluster.worker has no more addresses.",
        "index=2",
        "list every process of the job.",
    ),
    "chief not in the cluster": (
        task(type="chief", index=0),
        "task.type names a job that the cluster does not have.",
        "type='chief', the jobs worker",
        "Add the addresses of the job 'chief', or correct the type.",
    ),
    "empty job": (
        text({"worker": WORKERS, "ps": []}, {"type": "ps", "index": 0}),
        "task.type names a job that the cluster does not have.",
        "type='ps', the jobs worker",
        "Add the addresses of the job 'ps'",
    ),
}


@pytest.mark.parametrize("mistake", MALFORMED)
def test_a_malformed_tf_config_is_refused(mistake):
    malformed, wrong, received, advice = MALFORMED[mistake]

    with pytest.raises(ValueError, match=r"^TF_CONFIG .*Received: ?") as error:
        loads(malformed)

    message = str(error.value)
    assert message.startswith(f"TF_CONFIG {wrong}")
    what_was_received = message.partition("Received:")[2]
    assert what_was_received.lstrip().startswith(received)
    assert advice in what_was_received


@pytest.mark.parametrize("mistake", MALFORMED)
def test_the_first_finding_is_what_is_raised(mistake):
    malformed = MALFORMED[mistake][0]
    found = findings(malformed)

    with pytest.raises(ValueError) as error:  # noqa: PT011
        loads(malformed)

    assert str(error.value) == f"TF_CONFIG {found[0].message}"
    assert {each.severity for each in found} == {"error"}
    assert {each.effect for each in found} <= set(EFFECTS)


# Examples with more than one mistake.
SEVERAL = {
    "job twice": 2,  # and no task
    "environment alone": 2,  # neither a cluster nor a task
    "cluster empty": 3,  # and neither a type nor an index
    "task empty": 2,
}


@pytest.mark.parametrize("mistake", MALFORMED)
def test_one_mistake_is_one_finding(mistake):
    """What follows from a mistake is not reported, too."""
    found = findings(MALFORMED[mistake][0])

    assert len(found) == SEVERAL.get(mistake, 1), [each.message for each in found]


def test_an_empty_object_is_a_process_alone():
    assert loads("{}") == Cluster()
    assert loads(" {\n} ") == Cluster()


def test_all_four_jobs_are_read():
    full = {"chief": ["c:1"], "worker": WORKERS, "ps": ["p:1"], "evaluator": ["e:1"]}

    cluster = loads(text(full, {"type": "worker", "index": 1}))

    assert cluster == Cluster(
        chief="c:1",
        workers=("a:1", "b:1"),
        ps=("p:1",),
        evaluators=("e:1",),
        task=Task("worker", 1),
    )
    assert (cluster.rank, cluster.size) == (2, 3)


@pytest.mark.parametrize(("job_type", "index"), [("ps", 1), ("evaluator", 0)])
def test_processes_that_do_not_train_are_read_too(job_type, index):
    cluster = {"worker": WORKERS, "ps": ["p:1", "p:2"]}
    assert loads(text(cluster, {"type": job_type, "index": index})).task == Task(
        job_type, index
    )


@pytest.mark.parametrize("job", ["master", "chief"])
@pytest.mark.parametrize("task_type", ["master", "chief"])
def test_master_is_understood_as_chief(job, task_type):
    cluster = loads(
        text({job: ["c:1"], "worker": WORKERS}, {"type": task_type, "index": 0})
    )
    assert cluster.chief == "c:1"
    assert cluster.task == Task("chief", 0)
    assert cluster.is_chief


def test_an_empty_job_that_nobody_misses_is_not_there():
    assert loads(jobs(worker=WORKERS, ps=[], chief=[], evaluator=[])) == Cluster(
        workers=("a:1", "b:1")
    )


@pytest.mark.parametrize(
    "others",
    [
        {"environment": "cloud", "job": {"worker_count": 1}},
        {"environment": "cloud", "job": "{}"},
        {"rpc_layer": "grpc"},
        {"sparseCluster": {"worker": {"0": "a:1"}, "ps": []}},
    ],
)
def test_what_schedulers_add_is_accepted(others):
    assert loads(text({"worker": WORKERS}, TASK, **others)).size == 2


def test_what_schedulers_add_to_the_parts_is_accepted():
    cluster = {"worker": WORKERS, "sparseCluster": {"worker": {"0": "a:1"}}}
    task = {**TASK, "trial": "3", "cloud": "w93a1503672d4dd09-ml"}
    assert loads(text(cluster, task)) == Cluster(workers=("a:1", "b:1"))


def tfjob(kind, index, replicas):
    """Return what Kubeflow's operator writes into a pod of the TFJob "mnist"."""
    cluster = {
        job: [f"mnist-{job}-{i}.default.svc:2222" for i in range(count)]
        for job, count in replicas.items()
    }
    return text(cluster, {"type": kind, "index": index}, environment="cloud")


@pytest.mark.parametrize(
    ("kind", "index", "task", "rank"),
    [
        ("master", 0, Task("chief", 0), 0),
        ("worker", 0, Task("worker", 0), 1),
        ("worker", 1, Task("worker", 1), 2),
    ],
)
def test_a_tfjob_with_a_master(kind, index, task, rank):
    cluster = loads(tfjob(kind, index, {"master": 1, "ps": 1, "worker": 2}))

    assert (cluster.task, cluster.rank, cluster.size) == (task, rank, 3)
    assert cluster.address == f"mnist-{kind}-{index}.default.svc:2222"
    assert cluster.ps == ("mnist-ps-0.default.svc:2222",)


@pytest.mark.parametrize(
    "replicas", [{"chief": 1, "worker": 1}, {"master": 1, "ps": 1}, {"worker": 2}]
)
def test_the_evaluator_of_a_tfjob_stands_outside_the_cluster(replicas):
    cluster = loads(tfjob("evaluator", 0, replicas))

    assert cluster.task == Task("evaluator", 0)
    assert cluster.evaluators == ()
    assert not cluster.task.trains
    assert not cluster.is_chief
    with pytest.raises(ValueError, match="^This process has no address in its cluster"):
        assert cluster.address


# A worker of a TFJob whose workers may come and go knows itself and the ps; a ps too.
@pytest.mark.parametrize(
    "sparse",
    [
        {"worker": {"1": "mnist-worker-1.default.svc:2222"}, "ps": [], "chief": {}},
        {"ps": ["mnist-ps-0.default.svc:2222"], "chief": {}},
    ],
)
@pytest.mark.parametrize("kind", ["worker", "ps"])
def test_a_tfjob_with_workers_that_come_and_go_is_refused(sparse, kind):
    task = {"type": kind, "index": 0}
    config = json.dumps({"sparseCluster": sparse, "task": task})

    with pytest.raises(ValueError, match="^TF_CONFIG cluster is sparse: .* Set enable"):
        loads(config)


def many_clusters():
    """Return every combination of jobs, as each of its tasks sees it."""
    combinations = itertools.product(
        [(), ("c:1",)],
        [(), ("a:1",), ("a:1", "a:2", "b:1"), ("[fe80::1]:1", "[fe80::1]:2")],
        [(), ("p:1", "p:2")],
        [(), ("e:1", "e:2")],
    )
    return [
        Cluster(
            chief=chief[0] if chief else None,
            workers=workers,
            ps=ps,
            evaluators=evaluators,
            task=Task(job_type, index),
        )
        for chief, workers, ps, evaluators in combinations
        if chief or workers
        for job_type, count in [
            ("chief", len(chief)),
            ("worker", len(workers)),
            ("ps", len(ps)),
            ("evaluator", 2),
        ]
        for index in range(count)
    ]


def test_a_cluster_survives_the_round_trip():
    clusters = [Cluster(), *many_clusters()]
    assert len(clusters) > 100
    assert [loads(dumps(cluster)) for cluster in clusters] == clusters


def test_the_text_is_what_tensorflow_reads():
    cluster = Cluster(chief="c:1", workers=("a:1",), ps=("p:1",), task=Task("ps", 0))
    assert json.loads(dumps(cluster)) == {
        "cluster": {"chief": ["c:1"], "worker": ["a:1"], "ps": ["p:1"]},
        "task": {"type": "ps", "index": 0},
    }
    assert dumps(Cluster()) == "{}"


O_NEIL = '{"cluster": {"worker": ["o\'neil:1", "$HOME:2"]}}'


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("json", "{}"),
        ("env", "TF_CONFIG='{}'"),
        ("shell", "export TF_CONFIG='{}'"),
        ("dotenv", "TF_CONFIG={}"),
    ],
)
def test_the_forms(to, line):
    assert format_tf_config("{}", to) == line
    assert to in FORMATS


@pytest.mark.parametrize(
    "script", ["{shell}\nprintenv TF_CONFIG", "{env} printenv TF_CONFIG"]
)
def test_a_shell_reads_the_value_as_it_was(script):
    lines = {to: format_tf_config(O_NEIL, to) for to in FORMATS}
    done = subprocess.run(
        ["sh", "-c", script.format_map(lines)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )

    assert done.stdout == f"{O_NEIL}\n"


def test_another_form_is_refused():
    message = "^to must be one of json, env, shell, dotenv. Received: to='yaml'. Use"
    with pytest.raises(ValueError, match=message):
        format_tf_config("{}", "yaml")
