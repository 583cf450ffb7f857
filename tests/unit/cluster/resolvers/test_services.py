"""Clusters that Kubernetes, Vertex AI and SageMaker describe."""

import json
import re

import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.kubernetes import KUBERNETES, TRAINJOB, VOLCANO
from tfdist.cluster.resolvers.services import SAGEMAKER, TONY, VERTEX


def env_of(text):
    """Read variables as the command `env` prints them."""
    return dict(variable.split("=") for variable in text.split())


# A pod of a Job with `completionMode: Indexed`; Kubernetes sets the last three.
JOB = env_of("""
TFDIST_JOB_NAME=train TFDIST_SERVICE=peers TFDIST_WORKERS=12 TFDIST_PORT=2300
JOB_COMPLETION_INDEX=10 HOSTNAME=train-10 KUBERNETES_SERVICE_HOST=10.0.0.1
""")
# A pod of a StatefulSet.
SET = env_of("""
TFDIST_JOB_NAME=train TFDIST_SERVICE=peers TFDIST_WORKERS=2 HOSTNAME=train-1
""")
# Of a training job on three hosts; SageMaker sorts their names as words.
ON_SAGEMAKER = env_of("""
SM_HOSTS=["algo-1","algo-10","algo-2"] SM_CURRENT_HOST=algo-2
SM_INSTANCE_GROUPS=["homogeneousCluster"] SM_IS_HETERO=false
""")
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
IMAGE = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
REDUCERS = {
    "worker_pool_specs": [
        {"container_spec": {"image_uri": "gcr.io/project/train"}},
        {"container_spec": {"image_uri": "gcr.io/project/train"}},
        {"container_spec": {"image_uri": IMAGE}},
    ]
}


def vertex(pools=POOLS, task=TASK, job=None):
    spec = {"cluster": pools, "environment": "cloud", "task": task, "job": job or {}}
    return {"CLUSTER_SPEC": json.dumps(spec | {"a_new_key": 0})}


# The second worker of a job of TonY.
OF_TONY = {
    "CLUSTER_SPEC": '{"chief": ["a:1"], "worker": ["b:2", "c:3"]}',
    "JOB_NAME": "worker",
    "TASK_INDEX": "1",
}
# The second worker of a Job of Volcano.
OF_VOLCANO = {
    "VC_WORKER_HOSTS": "run-worker-0.run,run-worker-1.run",
    "VC_WORKER_NUM": "2",
    "VC_TASK_INDEX": "1",
    "HOSTNAME": "run-worker-1",
}
# The second of two pods of a TrainJob that starts `python train.py`.
OF_TRAINER = env_of("""
PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_MASTER_PORT=29400
PET_MASTER_ADDR=digits-0-node-0-0.digits-0 JOB_COMPLETION_INDEX=1
""")


def worker(index, *workers, **others):
    return Cluster(workers=workers, task=Task("worker", index), **others)


@pytest.mark.parametrize(
    ("resolver", "env", "cluster"),
    [
        (KUBERNETES, JOB, worker(10, *(f"train-{n}.peers:2300" for n in range(12)))),
        (TONY, OF_TONY, worker(1, "b:2", "c:3", chief="a:1")),
        (VOLCANO, OF_VOLCANO, worker(1, *(f"run-worker-{n}.run:2222" for n in (0, 1)))),
        # Another name, as in an example for one task.
        (
            VOLCANO,
            env_of("VC_NODE_HOSTS=run-node-0.run HOSTNAME=run-node-0 TFDIST_PORT=9"),
            worker(0, "run-node-0.run:9"),
        ),
        (
            TRAINJOB,
            OF_TRAINER,
            worker(1, *(f"digits-0-node-0-{n}.digits-0:2222" for n in (0, 1))),
        ),
        *(
            (
                SAGEMAKER,
                ON_SAGEMAKER | {"SM_IS_HETERO": kind},
                worker(2, "algo-1:2222", "algo-10:2222", "algo-2:2222"),
            )
            for kind in ("false", "")
        ),
    ],
)
def test_a_job_of_workers(resolver, env, cluster):
    assert resolver.recognises(env)
    assert resolver.resolve(env) == cluster


def test_other_tasks_of_the_same_jobs():
    # With `hostNetwork` the pod has the name of its node.
    assert KUBERNETES.resolve(JOB | {"HOSTNAME": "node-3"}).rank == 10
    env = OF_VOLCANO | {"VC_PS_HOSTS": "run-ps-0.run", "HOSTNAME": "run-ps-0"}
    assert VOLCANO.resolve(env).task == Task("ps", 0)
    assert TRAINJOB.recognises(OF_TRAINER | {"PET_NODE_RANK": "0"})


@pytest.mark.parametrize(
    ("changes", "address"),
    [
        ({}, "train-1.peers:2222"),
        ({"HOSTNAME": "train-1.peers.default.svc.local"}, "train-1.peers:2222"),
        ({"TFDIST_SERVICE": "peers.research.svc"}, "train-1.peers.research.svc:2222"),
        (
            {"TFDIST_JOB_NAME": "train-2", "HOSTNAME": "train-2-0"},
            "train-2-0.peers:2222",
        ),
        ({"TFDIST_WORKERS": "1", "HOSTNAME": "train-0"}, "train-0.peers:2222"),
    ],
)
def test_a_pod_of_a_stateful_set(changes, address):
    cluster = KUBERNETES.resolve(SET | changes)

    assert cluster.address == address
    assert cluster.size == int(changes.get("TFDIST_WORKERS", 2))


def test_each_pool_of_vertex_is_a_job():
    for pool, job in {
        "workerpool0": "chief",
        "workerpool1": "worker",
        "workerpool2": "ps",
        "workerpool3": "evaluator",
    }.items():
        assert VERTEX.resolve(vertex(task={"type": pool, "index": 0})) == Cluster(
            chief=POOLS["workerpool0"][0],
            workers=tuple(POOLS["workerpool1"]),
            ps=tuple(POOLS["workerpool2"]),
            evaluators=tuple(POOLS["workerpool3"]),
            task=Task(job, 0),
        )


def test_a_vertex_job_of_one_replica_is_not_distributed():
    env = vertex({"workerpool0": ["a:2222"]}, {"type": "workerpool0", "index": 0})
    assert not VERTEX.resolve(env).is_distributed


# The documentation calls the description of the job a dictionary; it may be text too.
@pytest.mark.parametrize("job", [REDUCERS, json.dumps(REDUCERS)])
def test_reducers_are_no_parameter_servers(job):
    cluster = VERTEX.resolve(vertex(job=job))
    assert (cluster.ps, cluster.size, cluster.rank) == ((), 3, 2)


# test_detect.py has `mpirun` and torchrun in a container.
@pytest.mark.parametrize(
    ("resolver", "env"),
    [
        # Any pod of an indexed Job.
        (KUBERNETES, {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"}),
        (KUBERNETES, {"TFDIST_WORKERS": ""}),
        (VERTEX, {"CLUSTER_SPEC": ""}),
        # Another scheduler's.
        (VERTEX, {"CLUSTER_SPEC": '{"worker": ["a:2222"], "ps": ["b:2222"]}'}),
        (VERTEX, OF_TONY),
        (SAGEMAKER, {"SM_HOSTS": " "}),
        (SAGEMAKER, {"SM_HOSTS": "[]"}),
        (SAGEMAKER, {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}),
        (TRAINJOB, OF_TRAINER | env_of("PET_NODE_RANK=0 PET_NNODES=1")),
    ],
)
def test_variables_that_describe_no_job_are_not_recognised(resolver, env):
    assert not resolver.recognises(env)


NO_INDEX = "No variable gives the index of this pod. Received: no JOB_COMPLETION_INDEX"
ONE_HOST = "SM_CURRENT_HOST must be one of SM_HOSTS. Received: "
OTHERS = {"SM_IS_HETERO": "true", "SM_INSTANCE_GROUPS": '["data", "train"]'}
# What each variable of a pod must not be; None stands for none.
OF_A_POD = {
    "TFDIST_JOB_NAME": (None, "", "Train", "$(JOB_NAME)", "train-", "train\n"),
    "TFDIST_SERVICE": (None, "peers:2222", "http://peers", "peers..svc"),
    "TFDIST_WORKERS": (None, "two", "0", "10001", "1" * 5000, "٣"),
    # Kubernetes itself sets it where a Service is called tfdist.
    "TFDIST_PORT": ("tcp://10.0.0.1:2222", "0", "65536"),
    "JOB_COMPLETION_INDEX": ("one", "-1"),
}
# The variables, and the beginning of the error, with gaps.
MISTAKES = [
    *(
        (KUBERNETES, JOB | {name: value}, f"{name} must be ")
        for name, values in OF_A_POD.items()
        for value in values
    ),
    (KUBERNETES, JOB | {"JOB_COMPLETION_INDEX": "12"}, "The index of ... to 11,"),
    *(
        (KUBERNETES, JOB | {"JOB_COMPLETION_INDEX": None, "HOSTNAME": name}, NO_INDEX)
        for name in (None, "train-x7k2p", "other-1", "train-ps-1", "1")
    ),
    (VERTEX, {"CLUSTER_SPEC": "{'workerpool0': []}"}, "CLUSTER_SPEC is not valid JSON"),
    (
        VERTEX,
        vertex(POOLS | {"workerpool4": ["a:2222"]}),
        'CLUSTER_SPEC cluster has an unknown key "workerpool4". Received: worker',
    ),
    (VERTEX, vertex(task=TASK | {"type": "x"}), "CLUSTER_SPEC task.type must be one"),
    (
        VERTEX,
        vertex(task={"type": "workerpool2", "index": 0}, job=REDUCERS),
        "This replica is a reducer of Reduction Server ... workerpool2, index 0",
    ),
    *(
        (SAGEMAKER, ON_SAGEMAKER | {"SM_HOSTS": hosts}, "SM_HOSTS must be a JSON list")
        for hosts in ("algo-1", "['a', 'b']", "[" * 200_000, "null", '["a", 2]')
    ),
    (
        SAGEMAKER,
        ON_SAGEMAKER | {"SM_HOSTS": '["a", "a"]', "SM_CURRENT_HOST": "a"},
        "SM_HOSTS cluster.worker[1] has the same address as cluster.worker[0].",
    ),
    *(
        (SAGEMAKER, ON_SAGEMAKER | {"SM_CURRENT_HOST": host}, f"{ONE_HOST}{received}")
        for host, received in ((None, "no SM_"), ("algo-3", "SM_CURRENT_HOST='algo-3'"))
    ),
    (SAGEMAKER, ON_SAGEMAKER | OTHERS, "SM_HOSTS lists hosts of several instance gro"),
    (TONY, OF_TONY | {"TASK_INDEX": None}, "TASK_INDEX must be ... no TASK_INDEX"),
    (TONY, OF_TONY | {"CLUSTER_SPEC": "{"}, "CLUSTER_SPEC is not valid JSON"),
    (TONY, OF_TONY | {"JOB_NAME": "tensorboard"}, "CLUSTER_SPEC task"),
    *(
        (TRAINJOB, OF_TRAINER | {name: value}, f"{name} must be ... {received}")
        for name, value, received in (
            ("PET_NNODES", None, "no PET_NNODES"),
            ("PET_NNODES", "1:4", "PET_NNODES='1:4'"),
            ("PET_NODE_RANK", "2", "PET_NODE_RANK='2'"),
            ("PET_NPROC_PER_NODE", "auto", "PET_NPROC_PER_NODE='auto'"),
            ("PET_MASTER_ADDR", None, "no PET_MASTER_ADDR"),
            ("PET_MASTER_ADDR", "10.0.0.1", "PET_MASTER_ADDR='10.0.0.1'"),
        )
    ),
    (VOLCANO, OF_VOLCANO | {"HOSTNAME": "a-7"}, "No variable of Volcano ... 'a-7'"),
    (VOLCANO, OF_VOLCANO | {"TFDIST_PORT": "tcp://1"}, "TFDIST_PORT must be a port"),
    (
        VOLCANO,
        OF_VOLCANO | {"VC_MPIMASTER_HOSTS": "run-mpimaster-0.run"},
        'VC_WORKER_HOSTS, VC_MPIMASTER_HOSTS cluster has an unknown key "mpimaster"',
    ),
]


@pytest.mark.parametrize(
    ("resolver", "variables", "message"),
    MISTAKES,
    ids=lambda each: getattr(each, "name", None),
)
def test_a_mistake_is_refused_with_a_remedy(resolver, variables, message):
    env = {name: value for name, value in variables.items() if value is not None}
    pattern = ".*".join(map(re.escape, message.split(" ... ")))
    assert resolver.recognises(env)

    with pytest.raises(ValueError, match=rf"^{pattern}.*\. \w+ .*\.$"):
        resolver.resolve(env)
