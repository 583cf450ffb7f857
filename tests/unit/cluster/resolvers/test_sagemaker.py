import json

import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.sagemaker import SageMakerResolver

# Of a training job on three hosts; SageMaker sorts their names as words.
ENV = {
    "SM_HOSTS": '["algo-1","algo-10","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
    "SM_CURRENT_INSTANCE_TYPE": "ml.c5.xlarge",
    "SM_INSTANCE_GROUPS": '["homogeneousCluster"]',
    "SM_IS_HETERO": "false",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
    "SM_NUM_CPUS": "4",
    "SM_NUM_GPUS": "0",
}


def hosts(*names):
    return {"SM_HOSTS": json.dumps(names), "SM_CURRENT_HOST": names[0]}


# What is wrong: what is changed, how the error begins, what it received, its advice.
MALFORMED = {
    "a bare word": (
        {"SM_HOSTS": "algo-1"},
        "SM_HOSTS is not valid JSON: Expecting value at line 1, column 1.",
        "'algo-1'",
        'for example SM_HOSTS=\'["algo-1", "algo-2"]\'',
    ),
    "words with commas": (
        {"SM_HOSTS": "algo-1,algo-2"},
        "SM_HOSTS is not valid JSON",
        "'algo-1,algo-2'",
        "Leave it as the service sets it",
    ),
    "single quotes": (
        {"SM_HOSTS": "['algo-1', 'algo-2']"},
        "SM_HOSTS is not valid JSON: Expecting value at line 1, column 2.",
        "\"['algo-1', 'algo-2']\"",
        "Leave it as the service sets it",
    ),
    "cut off": (
        {"SM_HOSTS": '["algo-1",'},
        "SM_HOSTS is not valid JSON",
        "'[\"algo-1\",'",
        "Leave it as the service sets it",
    ),
    "nested without end": (
        {"SM_HOSTS": "[" * 200_000},
        "SM_HOSTS is not valid JSON: its brackets are nested too deep.",
        "'[[[",
        "Leave it as the service sets it",
    ),
    "an object": (
        {"SM_HOSTS": '{"hosts": ["algo-1"]}'},
        "SM_HOSTS must be a JSON list of host names.",
        '\'{"hosts": ["algo-1"]}\'',
        "Leave it as SageMaker sets it",
    ),
    "a string": (
        {"SM_HOSTS": '"algo-1"'},
        "SM_HOSTS must be a JSON list of host names.",
        "'\"algo-1\"'",
        "Leave it as SageMaker sets it",
    ),
    "a number among the hosts": (
        {"SM_HOSTS": '["algo-1", 2]'},
        "SM_HOSTS must be a JSON list of host names.",
        "'[\"algo-1\", 2]'",
        "for example SM_HOSTS=",
    ),
    "null": (
        {"SM_HOSTS": "null"},
        "SM_HOSTS must be a JSON list of host names.",
        "'null'",
        "Leave it as SageMaker sets it",
    ),
    "a host twice": (
        hosts("algo-1", "algo-1"),
        "SM_HOSTS cluster.worker[1] has the same address as cluster.worker[0].",
        "'algo-1:2222' twice",
        "List each process once",
    ),
    "a host without a name": (
        hosts("algo-1", ""),
        "SM_HOSTS cluster.worker[1] has no host.",
        "':2222'",
        'Write it as "host:port"',
    ),
    "a port": (
        hosts("algo-1:2222", "algo-2:2222"),
        "SM_HOSTS cluster.worker[0] must have a single colon",
        "'algo-1:2222:2222'",
        'Write it as "node1:2222"',
    ),
    "localhost": (
        hosts("localhost", "algo-2"),
        "SM_HOSTS cluster.worker[0] is on localhost, where",
        "1 of 2 addresses on localhost",
        "Give every host the name",
    ),
    "no host of its own": (
        {"SM_CURRENT_HOST": None},
        "SM_CURRENT_HOST must be one of SM_HOSTS.",
        "no SM_CURRENT_HOST, and 3 hosts from 'algo-1' on",
        "Leave both as SageMaker sets them.",
    ),
    "a host that is not listed": (
        {"SM_CURRENT_HOST": "algo-3"},
        "SM_CURRENT_HOST must be one of SM_HOSTS.",
        "SM_CURRENT_HOST='algo-3', and 3 hosts",
        "Leave both as SageMaker sets them.",
    ),
    "its own host as JSON": (
        {"SM_CURRENT_HOST": '"algo-1"'},
        "SM_CURRENT_HOST must be one of SM_HOSTS.",
        "SM_CURRENT_HOST='\"algo-1\"', and 3 hosts",
        "Leave both as SageMaker sets them.",
    ),
    "hosts of two kinds": (
        {"SM_IS_HETERO": "true", "SM_INSTANCE_GROUPS": '["data", "train"]'},
        "SM_HOSTS lists hosts of several instance groups",
        'SM_IS_HETERO=true, SM_INSTANCE_GROUPS=\'["data", "train"]\'',
        "Set TF_CONFIG to the hosts that train, or to {}",
    ),
}


def changed(changes):
    env = ENV | changes
    return {name: value for name, value in env.items() if value is not None}


def test_each_host_is_a_worker_in_the_order_of_sagemaker():
    assert SageMakerResolver().recognises(ENV)
    assert SageMakerResolver().resolve(ENV) == Cluster(
        workers=("algo-1:2222", "algo-10:2222", "algo-2:2222"),
        task=Task("worker", 2),
    )


@pytest.mark.parametrize("kind", ["false", "", None])
def test_a_job_that_says_less_of_its_hosts(kind):
    assert SageMakerResolver().resolve(changed({"SM_IS_HETERO": kind})).rank == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"SM_HOSTS": None},
        {"SM_HOSTS": " "},
        {"SM_HOSTS": "[]"},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
    ],
)
def test_a_job_on_one_host_is_not_recognised(changes):
    assert not SageMakerResolver().recognises(changed(changes))


def test_the_processes_of_mpirun_are_not_one_for_each_host():
    # Each has the SM_CURRENT_HOST of the first host, as `mpirun -x` copies it.
    launched = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
    assert not SageMakerResolver().recognises(ENV | launched)


@pytest.mark.parametrize("mistake", MALFORMED)
def test_a_malformed_variable_is_refused(mistake):
    changes, wrong, received, advice = MALFORMED[mistake]
    env = changed(changes)
    assert SageMakerResolver().recognises(env)

    with pytest.raises(ValueError, match=r" Received: ") as error:
        SageMakerResolver().resolve(env)

    what, _, rest = str(error.value).partition(" Received: ")
    assert what.startswith(wrong)
    assert rest.startswith(received)
    assert advice in rest
