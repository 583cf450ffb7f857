"""Launchers that give ranks: with TF_CONFIG `tfdist run`, the others alone."""

import pytest

from tfdist.cluster.detect import detect_membership
from tfdist.cluster.model import Cluster, Place, Task
from tfdist.cluster.resolvers.launchers import (
    GUARDS,
    HOROVOD,
    LAUNCHERS,
    MPICH,
    TORCHRUN,
    has_process_launcher,
)
from tfdist.cluster.resolvers.services import TFDIST
from tfdist.cluster.tf_config import dumps

RUN_ID = {"TORCHELASTIC_RUN_ID": "none"}


def env_of(launcher, *numbers):
    """Return the variables of the second process on the second host of two."""
    env = dict(zip(launcher.variables, numbers or ("3", "4", "1", "2"), strict=True))
    # Without a name of the local size it follows from the number of hosts.
    if env.pop("", None):
        env[launcher.hosts] = "2"
    env = {name: value for name, value in env.items() if value is not None}
    return env | RUN_ID if launcher is TORCHRUN else env


@pytest.mark.parametrize(
    "launcher",
    [launcher for launcher in LAUNCHERS if not launcher.hosts],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ((None, "4", "1", "2"), "{0.variables[0]} must be a whole number, as `"),
        (("3", "9" * 5000, "1", "2"), "{0.variables[1]} must be a whole number, as `"),
        (("3", "4", "0.5", "2"), "{0.variables[2]} must be a whole number, as `"),
        (("3", "4", "1", "²"), "{0.variables[3]} must be a whole number, as `"),
        (("4", "4", "1", "2"), "rank must be below size, local_rank below local_size"),
    ],
)
def test_malformed_numbers_are_refused(launcher, numbers, problem):
    env = env_of(launcher, *numbers)
    assert launcher.recognises(env)

    with pytest.raises(ValueError, match=r" Received: .+\. Start ") as error:
        launcher.resolve(env)

    assert str(error.value).startswith(problem.format(launcher))
    assert launcher.launcher in str(error.value)


def test_numbers_that_other_programs_set_are_not_recognised():
    assert not TORCHRUN.recognises({"RANK": "1", "WORLD_SIZE": "2"})
    # The `srun` of Slurm sets these.
    assert not MPICH.recognises({"PMI_RANK": "1", "PMI_SIZE": "2"})
    assert not HOROVOD.recognises({"HOROVOD_RANK": "", "HOROVOD_SIZE": ""})


# What processes of other launchers have in their environment, and what it says.
DUMPS = {
    "PALS, rank 13 of 24 on 2 hosts": (
        "PALS_RANKID=13 PALS_LOCAL_RANKID=1 PALS_NODEID=1 PMI_RANK=13 PMI_SIZE=24 "
        "PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=12",
        Place(13, 24, 1, 12, "mpiexec"),
    ),
    "PALS without the local size": (
        "PALS_RANKID=3 PALS_LOCAL_RANKID=3 PMI_SIZE=4",
        Place(3, 4, 3, 4, "mpiexec"),
    ),
    "flux run -N2 -n8": (
        "FLUX_JOB_ID=f2ABC FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=8 FLUX_TASK_RANK=5 "
        "FLUX_TASK_LOCAL_ID=1",
        Place(5, 8, 1, 4, "flux run"),
    ),
    "ibrun of MVAPICH": (
        "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 "
        "MV2_COMM_WORLD_LOCAL_SIZE=2",
        Place(1, 4, 1, 2, "mpirun_rsh"),
    ),
    "HPE MPT": (
        "PMI_RANK=2 PMI_SIZE=3 MPT_LRANK=0",
        Place(2, 3, 0, 1, "mpiexec_mpt"),
    ),
    "jsrun": (
        "JSM_NAMESPACE_RANK=7 JSM_NAMESPACE_SIZE=12 JSM_NAMESPACE_LOCAL_RANK=1 "
        "JSM_NAMESPACE_LOCAL_SIZE=6 PMIX_RANK=7 PMIX_NAMESPACE=1",
        Place(7, 12, 1, 6, "jsrun"),
    ),
    "a container of a Slurm step": (
        "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0",
        Place(0, 2, 0, 1, "srun"),
    ),
    "a container that knows the nodes of the job": (
        "SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NNODES=2 "
        "SLURM_JOB_NODELIST=n[1-2]",
        Place(1, 4, 1, 2, "srun"),
    ),
    "the script of sbatch": (
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_NODELIST=n[1-2]",
        Place(),
    ),
    "a task of a step that trains apart": (
        "TF_CONFIG={} SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 "
        "SLURM_NTASKS=4 SLURM_LOCALID=0",
        Place(),
    ),
    "the script of a job of Torque": (
        "PBS_VNODENUM=0 PBS_TASKNUM=1 PBS_NODEFILE=/var/1",
        Place(),
    ),
    "the only pod of Kubeflow Trainer": ("PET_NODE_RANK=0 PET_NNODES=1", Place()),
}


@pytest.mark.parametrize(("env", "place"), DUMPS.values(), ids=DUMPS)
def test_what_other_launchers_say(env, place):
    member = detect_membership(dict(each.split("=") for each in env.split()))

    local = member.local_rank, member.local_size
    assert Place(member.rank, member.size, *local, member.launcher) == place


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_rank_without_a_size_is_refused(guard):
    rank = guard.variables[0]
    env = {rank: "1", **dict.fromkeys(guard.signs, "x")}
    assert guard.recognises(env)
    message = (
        f"^{rank} gives the rank of this process, but no variable the number of "
        f"processes. Received: {rank}='1', as {guard.launcher} sets it. Start"
    )
    with pytest.raises(ValueError, match=message.replace("$", ".")):
        detect_membership(env)


@pytest.mark.parametrize(
    "others", [{"SLURM_PROCID": "0"}, {"OMPI_MCA_ess": "singleton"}, {"PMIX_RANK": ""}]
)
def test_a_rank_of_pmix_that_says_nothing_is_ignored(others):
    env = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-node1-4711@1"}
    assert not any(guard.recognises(env | others) for guard in GUARDS)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda each: each.name)
def test_a_launcher_of_several_processes_in_a_container(launcher):
    assert has_process_launcher(env_of(launcher))
    assert not has_process_launcher(env_of(launcher, "0", "1", "0", "1"))


WORKERS = ("127.0.0.1:1", "127.0.0.1:2")
TWO = Cluster(workers=WORKERS, task=Task("worker", 1))
ROLES = {"chief": "a:1", "workers": ("a:2", "a:3"), "ps": ("a:4",)}


def launched(cluster=TWO, **changes):
    """Return the variables of `tfdist run` for a rank, then changed."""
    ranks = {"TFDIST_RANK": "1", "TFDIST_SIZE": "2", "TFDIST_RUN_ID": "5f2c"}
    env = {"TF_CONFIG": dumps(cluster), **ranks, **changes}
    return {name: value for name, value in env.items() if value is not None}


def with_servers(task, **changes):
    """Return the variables of `tfdist run` for a task of `ROLES`, then changed."""
    names = {"TFDIST_TASK": str(task), "TFDIST_SIZE": "3", "TFDIST_RANK": None}
    return launched(Cluster(**ROLES, task=task), **names | changes)


@pytest.mark.parametrize(
    ("env", "cluster"),
    [
        (launched(), TWO),
        (launched(Cluster(), TFDIST_RANK="0", TFDIST_SIZE="1"), Cluster()),
        *(
            (with_servers(task), Cluster(**ROLES, task=task))
            for task in (Task("chief", 0), Task("worker", 1), Task("ps", 0))
        ),
    ],
)
def test_the_cluster_of_a_run(env, cluster):
    assert TFDIST.recognises(env)
    assert TFDIST.resolve(env) == cluster
    assert TFDIST.resolve(env).run_id == "5f2c"


NUMBER = "must be a whole number, as `tfdist run` sets it. Received: "
BY_RANK = "TFDIST_RANK=1 and TFDIST_SIZE=2, but TF_CONFIG says "
BY_TASK = "TFDIST_TASK=ps 0 and TFDIST_SIZE=3, but TF_CONFIG says "


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (launched(Cluster(workers=WORKERS)), f"{BY_RANK}rank 0, with 2 training. Rem"),
        (
            launched(Cluster(workers=WORKERS, task=Task("evaluator", 1))),
            f"{BY_RANK}evaluator 1, with 2 training.",
        ),
        (
            with_servers(Task("ps", 0), TF_CONFIG=dumps(TWO)),
            f"{BY_TASK}worker 1, with 2 training.",
        ),
        (
            with_servers(
                Task("ps", 0),
                TF_CONFIG=dumps(Cluster(**ROLES, task=Task("chief", 0))),
            ),
            f"{BY_TASK}chief 0, with 3 training.",
        ),
        # The worker's rank without a chief is not that of its task.
        (
            with_servers(Task("worker", 0), TF_CONFIG=dumps(TWO)),
            "TFDIST_TASK=worker 0 and TFDIST_SIZE=3, but TF_CONFIG says worker 1, ",
        ),
        (launched(TF_CONFIG=None), "TF_CONFIG is not set any more, though `tfdist run"),
        (launched(TF_CONFIG=" "), "Received: TFDIST_RUN_ID without TF_CONFIG. Leave"),
        (launched(TF_CONFIG="{"), "TF_CONFIG is not valid JSON"),
        (launched(TFDIST_RANK=" 1"), f"TFDIST_RANK {NUMBER}TFDIST_RANK=' 1'. Start"),
        (launched(TFDIST_SIZE=None), f"TFDIST_SIZE {NUMBER}no TFDIST_SIZE. Start"),
    ],
)
def test_a_tf_config_other_than_the_run_gave_is_refused(env, message):
    with pytest.raises(ValueError, match="TF_CONFIG|TFDIST_") as error:
        TFDIST.resolve(env)

    assert message in str(error.value)
