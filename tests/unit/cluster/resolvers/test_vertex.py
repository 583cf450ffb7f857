import json

import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.vertex import VertexResolver

# The names of the example in the documentation of Vertex AI.
POOLS = {
    "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1": [
        "cmle-training-workerpool1-ab-0:2222",
        "cmle-training-workerpool1-ab-1:2222",
    ],
    "workerpool2": ["cmle-training-workerpool2-ab-0:2222"],
    "workerpool3": ["cmle-training-workerpool3-ab-0:2222"],
}
TASK = {"type": "workerpool1", "index": 1, "trial": "TRIAL_ID"}
REDUCERS = {
    "worker_pool_specs": [
        {"container_spec": {"image_uri": "gcr.io/project/train"}},
        {"container_spec": {"image_uri": "gcr.io/project/train"}},
        {
            "container_spec": {
                "image_uri": "us-docker.pkg.dev/vertex-ai-restricted/training/"
                "reductionserver:latest"
            }
        },
    ]
}


def env_of(pools=POOLS, task=TASK, job=None):
    spec = {"cluster": pools, "environment": "cloud", "task": task, "job": job or {}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


def without(key):
    spec = json.loads(env_of()["CLUSTER_SPEC"])
    del spec[key]
    return {"CLUSTER_SPEC": json.dumps(spec)}


def task(**changes):
    return env_of(task=TASK | changes)


def pools(**changes):
    return env_of(POOLS | changes)


# What is wrong: the environment, how the error begins, what it received, its advice.
AS_SET = "Leave CLUSTER_SPEC as Vertex AI sets it."
MALFORMED = {
    "cut off": (
        {"CLUSTER_SPEC": '{"cluster": {"workerpool0":'},
        "CLUSTER_SPEC is not valid JSON: Expecting value at line 1, column 28.",
        '\'{"cluster": {"workerpool0":\'',
        "Leave it as the service sets it",
    ),
    "single quotes": (
        {"CLUSTER_SPEC": "{'cluster': {'workerpool0': ['a:2222']}}"},
        "CLUSTER_SPEC is not valid JSON: Expecting property name",
        "\"{'cluster'",
        "for example CLUSTER_SPEC=",
    ),
    "a pool twice": (
        {"CLUSTER_SPEC": '{"cluster": {"workerpool0": [], "workerpool0": []}}'},
        "CLUSTER_SPEC is not valid JSON: a key stands more than once",
        '\'{"cluster"',
        "Leave it as the service sets it",
    ),
    "a list": (
        {"CLUSTER_SPEC": '["workerpool0"]'},
        "CLUSTER_SPEC must be a JSON object.",
        "'[\"workerpool0\"]'",
        AS_SET,
    ),
    "quoted twice": (
        {"CLUSTER_SPEC": json.dumps(env_of()["CLUSTER_SPEC"])},
        "CLUSTER_SPEC must be a JSON object.",
        "'\"{",
        AS_SET,
    ),
    "no cluster": (
        without("cluster"),
        'CLUSTER_SPEC must have an object "cluster".',
        "'only environment, task, job'",
        AS_SET,
    ),
    "no task": (
        without("task"),
        'CLUSTER_SPEC must have an object "task".',
        "'only cluster, environment, job'",
        AS_SET,
    ),
    "a list of pools": (
        env_of(pools=["workerpool0"]),
        'CLUSTER_SPEC must have an object "cluster".',
        "\"cluster=['workerpool0']\"",
        AS_SET,
    ),
    "a task in one word": (
        env_of(task="workerpool0"),
        'CLUSTER_SPEC must have an object "task".',
        "\"task='workerpool0'\"",
        AS_SET,
    ),
    "a fifth pool": (
        pools(workerpool4=["a:2222"]),
        "CLUSTER_SPEC cluster has a worker pool that is no part of training.",
        "'workerpool4'",
        "Known are: workerpool0, workerpool1, workerpool2, workerpool3.",
    ),
    "a pool in one string": (
        pools(workerpool1="a:2222"),
        'CLUSTER_SPEC cluster.workerpool1 must be a list of "host:port" strings.',
        "'a:2222'",
        AS_SET,
    ),
    "a number among the addresses": (
        pools(workerpool1=["a:2222", 2222]),
        'CLUSTER_SPEC cluster.workerpool1 must be a list of "host:port" strings.',
        "\"['a:2222', 2222]\"",
        AS_SET,
    ),
    "no primary replica": (
        pools(workerpool0=[]),
        "CLUSTER_SPEC cluster.workerpool0 must have one address, the chief's.",
        "0 addresses",
        "a replicaCount of 1, and the second one the workers.",
    ),
    "two primary replicas": (
        pools(workerpool0=["a:2222", "b:2222"]),
        "CLUSTER_SPEC cluster.workerpool0 must have one address, the chief's.",
        "2 addresses",
        "a replicaCount of 1, and the second one the workers.",
    ),
    "an address without a port": (
        pools(workerpool1=["a:2222", "b"]),
        "CLUSTER_SPEC cluster.workerpool1[1] has no port.",
        "'b'",
        'Write it as "host:port"',
    ),
    "an address twice": (
        pools(workerpool2=POOLS["workerpool0"]),
        "CLUSTER_SPEC cluster.workerpool2[0] has the same address as "
        "cluster.workerpool0[0].",
        "'cmle-training-workerpool0-ab-0:2222' twice",
        "List each process once",
    ),
    "no type": (
        env_of(task={"index": 0}),
        "CLUSTER_SPEC task.type must be one of the worker pools of the cluster.",
        "type='None', the pools workerpool0, workerpool1",
        AS_SET,
    ),
    "the type of a TF_CONFIG": (
        task(type="worker"),
        "CLUSTER_SPEC task.type must be one of the worker pools of the cluster.",
        "type='worker', the pools workerpool0, workerpool1",
        AS_SET,
    ),
    "a pool that is empty": (
        env_of(POOLS | {"workerpool1": []}),
        "CLUSTER_SPEC task.type must be one of the worker pools of the cluster.",
        "type='workerpool1', the pools workerpool0, workerpool2, workerpool3",
        AS_SET,
    ),
    "a list as type": (
        task(type=["workerpool1"]),
        "CLUSTER_SPEC task.type must be one of the worker pools of the cluster.",
        "type=\"['workerpool1']\"",
        AS_SET,
    ),
    "no index": (
        env_of(task={"type": "workerpool1"}),
        "CLUSTER_SPEC task.index must be from 0 to 1, as cluster.workerpool1 has no",
        "index='None'",
        AS_SET,
    ),
    "an index beyond the pool": (
        task(index=2),
        "CLUSTER_SPEC task.index must be from 0 to 1, as cluster.workerpool1 has no",
        "index='2'",
        AS_SET,
    ),
    "a negative index": (
        task(index=-1),
        "CLUSTER_SPEC task.index must be from 0 to 1",
        "index='-1'",
        AS_SET,
    ),
    "an index in quotation marks": (
        task(index="one"),
        "CLUSTER_SPEC task.index must be from 0 to 1",
        "index='one'",
        AS_SET,
    ),
    "an index that is no number": (
        task(index=True),
        "CLUSTER_SPEC task.index must be from 0 to 1",
        "index='True'",
        AS_SET,
    ),
    "a fraction as index": (
        task(index=1.0),
        "CLUSTER_SPEC task.index must be from 0 to 1",
        "index='1.0'",
        AS_SET,
    ),
    "a reducer": (
        env_of(task={"type": "workerpool2", "index": 0}, job=REDUCERS),
        "This replica is a reducer of Reduction Server, which does not train.",
        "workerpool2, index 0",
        "Give the third worker pool the image of Reduction Server",
    ),
}


def test_each_pool_is_a_job():
    assert VertexResolver().recognises(env_of())
    assert VertexResolver().resolve(env_of()) == Cluster(
        chief=POOLS["workerpool0"][0],
        workers=tuple(POOLS["workerpool1"]),
        ps=tuple(POOLS["workerpool2"]),
        evaluators=tuple(POOLS["workerpool3"]),
        task=Task("worker", 1),
    )


@pytest.mark.parametrize(
    ("pool", "job"),
    [
        ("workerpool0", "chief"),
        ("workerpool1", "worker"),
        ("workerpool2", "ps"),
        ("workerpool3", "evaluator"),
    ],
)
def test_the_pool_of_a_replica_is_its_task(pool, job):
    assert VertexResolver().resolve(task(type=pool, index=0)).task == Task(job, 0)


def test_the_primary_replica_is_rank_0():
    assert VertexResolver().resolve(task(type="workerpool0", index=0)).is_chief
    assert VertexResolver().resolve(env_of()).rank == 2


def test_a_job_of_one_replica_is_no_distributed_one():
    env = env_of({"workerpool0": ["a:2222"]}, {"type": "workerpool0", "index": 0})
    assert not VertexResolver().resolve(env).is_distributed


# The documentation calls the description of the job a dictionary; it may be text too.
@pytest.mark.parametrize("job", [REDUCERS, json.dumps(REDUCERS)])
def test_reducers_are_no_parameter_servers(job):
    cluster = VertexResolver().resolve(env_of(job=job))
    assert cluster.ps == ()
    assert cluster.size == 3


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"CLUSTER_SPEC": ""},
        # Another scheduler's.
        {"CLUSTER_SPEC": '{"worker": ["a:2222"], "ps": ["b:2222"]}'},
        env_of() | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
    ],
)
def test_what_vertex_has_not_set_for_this_process_is_not_recognised(env):
    assert not VertexResolver().recognises(env)


@pytest.mark.parametrize("mistake", MALFORMED)
def test_a_malformed_cluster_spec_is_refused(mistake):
    env, wrong, received, advice = MALFORMED[mistake]
    assert VertexResolver().recognises(env)

    with pytest.raises(ValueError, match=r" Received: ") as error:
        VertexResolver().resolve(env)

    what, _, rest = str(error.value).partition(" Received: ")
    assert what.startswith(wrong)
    assert rest.startswith(received)
    assert advice in rest
