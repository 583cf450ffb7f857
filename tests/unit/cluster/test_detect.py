"""Detection of the cluster, the ranks and their source from the environment."""

import json
import re
import subprocess
import sys

import pytest

import tfdist
from tfdist.cluster import Cluster, Task, detect
from tfdist.cluster.detect import (
    RANK_RESOLVERS,
    RESOLVERS,
    SOURCES,
    Explanation,
    LateTFConfig,
    detect_membership,
    explain,
    read_source,
)
from tfdist.cluster.model import Place
from tfdist.cluster.resolvers.launchers import GUARDS
from tfdist.cluster.tf_config import dumps


def place_of(env=None):
    """Return the numbers of a process, from any source."""
    member = detect_membership(env)
    local = (member.local_rank, member.local_size)
    return Place(member.rank, member.size, *local, member.launcher)


def env_of(text):
    """Read variables as the command `env` prints them."""
    return dict(variable.split("=") for variable in text.split())


TWO = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"), task=Task("worker", 1))
TF_CONFIG = {"TF_CONFIG": dumps(TWO)}
LAUNCHED = TF_CONFIG | env_of("TFDIST_RUN_ID=5f2c TFDIST_RANK=1 TFDIST_SIZE=2")
UNDER_HOROVODRUN = env_of(
    "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2"
)
UNDER_MPIRUN = env_of(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2"
)
UNDER_MPICH = env_of("PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2")
UNDER_TORCHRUN = env_of(
    "TORCHELASTIC_RUN_ID=none RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4"
)
UNDER_SRUN = env_of(
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n[9-10] "
    "SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=0"
)
UNDER_PMIX = env_of("PMIX_NAMESPACE=prterun-a-1@1 PMIX_RANK=1")
IN_A_POD = env_of(
    "TFDIST_JOB_NAME=train TFDIST_SERVICE=peers TFDIST_WORKERS=2 JOB_COMPLETION_INDEX=0"
)
POOLS = {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}
ON_VERTEX = {
    "CLUSTER_SPEC": json.dumps(
        {"cluster": POOLS, "task": {"type": "workerpool1", "index": 0}}
    )
}
ON_SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
OF_VOLCANO = {"VC_WORKER_HOSTS": "a-1.a,algo-2.a", "HOSTNAME": "algo-2"}
OF_TONY = {"CLUSTER_SPEC": '{"worker": ["a:1", "b:1"]}'}
OF_TONY |= {"JOB_NAME": "worker", "TASK_INDEX": "1"}
OF_TRAINER = env_of("PET_NODE_RANK=1 PET_NNODES=2 PET_MASTER_ADDR=a-node-0-0.a")
SERVICES = [IN_A_POD, ON_VERTEX, ON_SAGEMAKER, OF_VOLCANO, OF_TRAINER, OF_TONY]
ALONE = {"TF_CONFIG": "{}"}
ONE = {"TF_CONFIG": dumps(Cluster(workers=("127.0.0.1:1",)))}
PS = {"TF_CONFIG": dumps(Cluster(workers=("a:1",), ps=("b:1",), task=Task("ps", 0)))}
ROLES = {"chief": "a:1", "workers": ("a:2", "b:1"), "ps": ("b:2",)}
CHIEF = {"TF_CONFIG": dumps(Cluster(**ROLES, task=Task("chief", 0)))}


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": " "}, ALONE])
def test_no_description_is_a_process_alone(env):
    assert detect(env) == Cluster()
    assert place_of(env) == Place()


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", dumps(TWO))
    assert detect() == TWO
    assert read_source("tfjob") == TWO
    assert explain().cluster == TWO


@pytest.mark.parametrize("env", [UNDER_SRUN, *SERVICES])
def test_the_launcher_and_tf_config_come_before_a_scheduler(env):
    assert detect(env).is_distributed
    assert detect(env | LAUNCHED).run_id == "5f2c"
    assert detect(env | TF_CONFIG) == TWO
    assert detect(env | ALONE) == Cluster()
    # TF_CONFIG alone would take this for worker 0.
    with pytest.raises(ValueError, match="not the one that `tfdist run` gave"):
        detect(env | LAUNCHED | {"TFDIST_RANK": "0"})


def test_a_malformed_description_is_not_passed_over():
    with pytest.raises(ValueError, match=r"^TF_CONFIG must have an object \"cluster\""):
        detect(UNDER_SRUN | {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'})
    with pytest.raises(ValueError, match="Received: no HOROVOD_SIZE. Start"):
        place_of(UNDER_MPIRUN | {"HOROVOD_RANK": "1"})
    with pytest.raises(ValueError, match="^PMIX_RANK gives the rank of this process"):
        place_of(UNDER_PMIX)


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (ONE, Place()),
        (LAUNCHED, Place(1, 2, 1, 2, "tfdist run")),
        (TF_CONFIG, Place(1, 2, 1, 2, "TF_CONFIG")),
        (UNDER_SRUN, Place(2, 4, 0, 2, "srun")),
        (IN_A_POD, Place(0, 2, 0, 1, "Kubernetes")),
        (ON_VERTEX, Place(1, 2, 0, 1, "Vertex AI")),
        (ON_SAGEMAKER, Place(1, 2, 0, 1, "SageMaker")),
        # `mpirun` and `horovodrun` reach the nodes of a job through steps of their own.
        (UNDER_SRUN | UNDER_MPIRUN, Place(3, 4, 1, 2, "mpirun")),
        (UNDER_SRUN | UNDER_MPICH, Place(2, 4, 0, 2, "mpirun")),
        (UNDER_SRUN | UNDER_HOROVODRUN, Place(1, 2, 1, 2, "horovodrun")),
        # MPI may have started another launcher, or be one that uses PMIx.
        (UNDER_MPIRUN | UNDER_HOROVODRUN, Place(1, 2, 1, 2, "horovodrun")),
        (UNDER_MPIRUN | UNDER_TORCHRUN, Place(5, 8, 1, 4, "torchrun")),
        (UNDER_MPIRUN | UNDER_PMIX, Place(3, 4, 1, 2, "mpirun")),
        # A cluster comes before variables without addresses, but one of a single
        # process does not hide a launcher, unless it is a run.
        (LAUNCHED | UNDER_MPIRUN, Place(1, 2, 1, 2, "tfdist run")),
        (ONE | UNDER_MPIRUN, Place(3, 4, 1, 2, "mpirun")),
        (ALONE | UNDER_HOROVODRUN, Place(1, 2, 1, 2, "horovodrun")),
        (
            ONE
            | {"TFDIST_RUN_ID": "5f", "TFDIST_RANK": "0", "TFDIST_SIZE": "1"}
            | UNDER_MPIRUN,
            Place(launcher="tfdist run"),
        ),
    ],
)
def test_the_place_in_a_cluster_or_under_several_launchers(env, place):
    assert place_of(env) == place


@pytest.mark.parametrize("env", SERVICES)
@pytest.mark.parametrize("launcher", [UNDER_MPIRUN, UNDER_TORCHRUN, UNDER_MPICH])
def test_a_launcher_inside_a_container_comes_before_the_container(env, launcher):
    assert detect(env | launcher) == Cluster()
    assert place_of(env | launcher) == place_of(launcher)


def test_two_launchers_with_different_ranks_are_refused():
    message = (
        "^{0} and TF_CONFIG give different ranks. "
        "Received: rank 0 of 2 from {0}, rank 1 of 2 from TF_CONFIG. Let one"
    )
    with pytest.raises(ValueError, match=message.format("horovodrun")):
        place_of(TF_CONFIG | UNDER_HOROVODRUN | {"HOROVOD_RANK": "0"})
    exported = UNDER_SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    with pytest.raises(ValueError, match=message.format("srun")):
        place_of(TF_CONFIG | exported)
    two = UNDER_MPIRUN | {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "0",
    }
    with pytest.raises(ValueError, match=message.format("mpirun")):
        place_of(TF_CONFIG | two)
    # Each process has its own, and parameter servers have no rank.
    assert place_of(TF_CONFIG | exported | {"SLURM_PROCID": "1"}).rank == 1
    assert not detect_membership(PS | UNDER_SRUN).trains


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({"HOROVOD_RANK": "", "HOROVOD_SIZE": ""}, None),
        (TF_CONFIG, None),
        (UNDER_SRUN, None),
        (UNDER_TORCHRUN, None),
        (LAUNCHED | UNDER_MPIRUN, None),
        (PS | UNDER_MPIRUN, None),
        (LAUNCHED | UNDER_HOROVODRUN, "tfdist run"),
        (UNDER_MPIRUN | UNDER_HOROVODRUN, "horovodrun"),
        (UNDER_SRUN | UNDER_MPIRUN, "mpirun"),
        (UNDER_MPICH, "mpirun"),
    ],
)
def test_the_launcher_that_connects_processes_for_horovod(env, launcher):
    assert detect_membership(env).horovod_launcher == launcher


def test_a_membership_without_addresses_has_an_empty_cluster():
    member = detect_membership(UNDER_MPIRUN)

    assert (member.rank, member.trains, member.is_chief) == (3, True, False)
    assert member.cluster == Cluster()
    assert detect_membership(LAUNCHED).cluster == TWO
    assert detect_membership(PS).trains is False


@pytest.mark.parametrize("numbers", [(2, 2), (0, 0), (0, 2, 1, 1), (0, 2, 0, 3)])
def test_an_impossible_place_is_refused(numbers):
    message = (
        f"^rank must be below size, .* Received: rank={numbers[0]}, "
        f"size={numbers[1]}, .* from mpirun. Start all"
    )
    with pytest.raises(ValueError, match=message):
        Place(*numbers, launcher="mpirun")


def test_an_explanation_names_the_variables_and_the_later_resolvers():
    found = explain(LAUNCHED | UNDER_MPICH)

    assert (found.resolver, found.launcher) == ("tfdist", "tfdist run")
    assert set(found.variables) == {*LAUNCHED}
    assert found.others == ("tf_config", "mpich")
    assert explain({"PATH": "/bin"}) == Explanation(Cluster())
    found = explain(UNDER_MPICH)
    assert (found.resolver, found.launcher, found.place.rank) == ("", "mpirun", 2)
    assert {*found.variables} == {*UNDER_MPICH}
    # The ranks are those that `detect_membership` reads.
    found = explain(ONE | UNDER_MPICH)
    assert (found.launcher, found.place.rank) == ("mpirun", 2)
    assert explain(ONE).resolver == "tf_config"


@pytest.mark.parametrize("before", [{}, ALONE])
def test_a_late_tf_config_is_reported_once(before):
    env = dict(before)
    late = LateTFConfig(env)
    assert late.warning() == ""
    env["TF_CONFIG"] = dumps(TWO)

    assert late.warning() == (
        "TF_CONFIG was set after the strategy was made, which has not read it. "
        f"Received: TF_CONFIG={dumps(TWO)}. Set it before the program makes a "
        "strategy, best before it starts."
    )
    assert late.warning() == ""


CASES = {
    "tfdist": LAUNCHED,
    "tf_config": TF_CONFIG,
    "kubernetes": IN_A_POD,
    "volcano": OF_VOLCANO,
    "trainjob": OF_TRAINER,
    "vertex": ON_VERTEX,
    "tony": OF_TONY,
    "sagemaker": ON_SAGEMAKER,
    "slurm": UNDER_SRUN,
    "horovod": UNDER_HOROVODRUN,
    "torchrun": UNDER_TORCHRUN,
    "openmpi": UNDER_MPIRUN,
    "pals": env_of("PALS_RANKID=1 PMI_SIZE=2 PALS_LOCAL_RANKID=1 PMI_LOCAL_SIZE=2"),
    "flux": env_of("FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1")
    | {"FLUX_JOB_NNODES": "1"},
    "mvapich": env_of("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2")
    | env_of("MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2"),
    "hpe_mpt": env_of("PMI_RANK=1 PMI_SIZE=2 MPT_LRANK=1"),
    "jsrun": env_of("JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2")
    | env_of("JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2"),
    "mpich": UNDER_MPICH,
    "slurm_remnants": env_of("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1"),
    "tfjob": TF_CONFIG,
}


@pytest.mark.parametrize("name", CASES)
def test_each_source_is_read_and_no_other(name):
    env = CASES[name]
    found = read_source(name, env)

    assert found == (place_of(env) if isinstance(found, Place) else detect(env))
    assert found == read_source("auto", env)
    message = f"--from {name} finds no job of several processes in the environment. "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}Received: 1 variables"):
        read_source(name, {"PATH": "/bin"})


def test_the_sources_are_the_tested_ones():
    assert (*CASES, "auto") == SOURCES
    resolvers = (*RESOLVERS, *RANK_RESOLVERS)
    assert len({resolver.name for resolver in resolvers}) == len(resolvers)
    # All but those that refuse the process, and Kubeflow's name of TF_CONFIG.
    assert len(SOURCES) == len(resolvers) - len(GUARDS) + len(("tfjob", "auto"))


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("mpi", {}, "--from must be one of tfdist, tf_config, kubernetes, volcano, "),
        ("auto", ALONE, "--from auto finds no job of several processes in the envi"),
        ("tfjob", ALONE, "--from tfjob finds no job of several processes in the env"),
        ("openmpi", {"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE must be a wh"),
        ("tf_config", {"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON"),
    ],
)
def test_a_source_without_a_job_is_refused(name, env, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_source(name, env)


def test_the_public_facts_are_read_at_every_call(monkeypatch):
    def facts():
        numbers = (tfdist.rank(), tfdist.size(), tfdist.local_rank())
        return (*numbers, tfdist.local_size(), tfdist.is_chief())

    assert facts() == (0, 1, 0, 1, True)
    monkeypatch.setenv("TF_CONFIG", dumps(TWO))
    assert facts() == (1, 2, 1, 2, False)
    monkeypatch.setenv("TF_CONFIG", PS["TF_CONFIG"])
    assert (tfdist.size(), tfdist.is_chief()) == (1, False)
    with pytest.raises(ValueError, match="^Only the chief and the workers have a rank"):
        tfdist.rank()
    # The chief of parameter servers does not train.
    monkeypatch.setenv("TF_CONFIG", CHIEF["TF_CONFIG"])
    assert facts() == (0, 2, 0, 2, True)


def test_ranks_that_would_try_trials_of_their_own_are_refused():
    tuner = {"KERASTUNER_TUNER_ID": "worker0"}

    assert detect_membership(tuner).size == 1
    # The chief alone runs the search.
    assert detect_membership(CHIEF | tuner).size == 3
    with pytest.raises(ValueError, match=r"Received: KERASTUNER_TUNER_ID=worker0 in a"):
        detect_membership(TF_CONFIG | tuner)


def test_importing_the_package_loads_nothing_slow():
    slow = "asyncio difflib importlib.metadata ipaddress keras logging multiprocessing "
    slow += "numpy socket subprocess tensorflow urllib.parse"
    program = (
        "import sys; before = set(sys.modules); import tfdist.cluster; "
        f"print(sorted((set(sys.modules) - before) & set({slow.split()!r})))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
