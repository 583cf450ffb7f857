import json
import re

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.detect import SOURCES, read_source
from tfdist.cluster.membership import Place

TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, '
    '"task": {"type": "worker", "index": 1}}'
}
ON_A_AND_B = Cluster(workers=("a:1", "b:1"), task=Task("worker", 1))
POOLS = {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}

CASES = {
    "slurm": (
        {
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "1",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "n[9-10]",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            "TFDIST_PORT_BASE": "2222",
        },
        Cluster(workers=("n9:2222", "n10:2222"), task=Task("worker", 1)),
    ),
    "openmpi": (
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        },
        Place(1, 2, launcher="mpirun"),
    ),
    "mpich": (
        {
            "PMI_RANK": "1",
            "PMI_SIZE": "2",
            "MPI_LOCALRANKID": "0",
            "MPI_LOCALNRANKS": "1",
        },
        Place(1, 2, launcher="mpirun"),
    ),
    "horovod": (
        {
            "HOROVOD_RANK": "1",
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
        },
        Place(1, 2, launcher="horovodrun"),
    ),
    "torchrun": (
        {
            "TORCHELASTIC_RUN_ID": "none",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        },
        Place(1, 2, launcher="torchrun"),
    ),
    "kubernetes": (
        {
            "TFDIST_JOB_NAME": "train",
            "TFDIST_SERVICE": "peers",
            "TFDIST_WORKERS": "2",
            "JOB_COMPLETION_INDEX": "1",
        },
        Cluster(
            workers=("train-0.peers:2222", "train-1.peers:2222"),
            task=Task("worker", 1),
        ),
    ),
    "tfjob": (TF_CONFIG, ON_A_AND_B),
    "sagemaker": (
        {"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "b"},
        Cluster(workers=("a:2222", "b:2222"), task=Task("worker", 1)),
    ),
    "vertex": (
        {
            "CLUSTER_SPEC": json.dumps(
                {"cluster": POOLS, "task": {"type": "workerpool1", "index": 0}}
            )
        },
        Cluster(chief="a:1", workers=("b:1",), task=Task("worker", 0)),
    ),
    "tf_config": (TF_CONFIG, ON_A_AND_B),
}


def test_every_source_is_tried():
    assert (*CASES, "auto") == SOURCES


@pytest.mark.parametrize("name", CASES)
def test_a_source_is_read(name):
    env, found = CASES[name]

    assert read_source(name, env) == found
    assert read_source("auto", env) == found


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_there(name):
    message = (
        f"--from {name} finds no job of several processes in --variables file. "
        "Received: 1 variables. It looks for "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as raised:
        read_source(name, {"PATH": "/bin"}, place="--variables file")

    # What it looks for is what is read.
    signs = re.findall(r"\b[A-Z]+_[A-Z_]+\b|\bRANK\b", str(raised.value))
    assert signs[0] in CASES[name][0]


def test_the_named_one_is_read_whatever_else_is_there():
    env = TF_CONFIG | CASES["horovod"][0]

    assert read_source("horovod", env) == CASES["horovod"][1]
    assert read_source("auto", env) == ON_A_AND_B


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG["TF_CONFIG"])

    assert read_source("tfjob") == ON_A_AND_B


def test_auto_goes_on_from_an_empty_tf_config():
    env, place = CASES["openmpi"]

    assert read_source("auto", env | {"TF_CONFIG": "{}"}) == place


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("mpi", {}, "--from must be one of slurm, openmpi, mpich, horovod, torchrun, "),
        (
            "auto",
            {},
            "--from auto finds no job of several processes in the environment",
        ),
        ("auto", {"TF_CONFIG": "{}"}, "--from auto finds no job of several processes"),
        (
            "tfjob",
            {"TF_CONFIG": "{}"},
            "--from tfjob finds a process that is alone. Received: a TF_CONFIG without "
            "a cluster in the environment. Give the addresses",
        ),
        ("openmpi", {"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE must be a wh"),
        ("tf_config", {"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON"),
    ],
)
def test_what_is_refused(name, env, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_source(name, env)
