"""Launchers that give ranks: with TF_CONFIG `tfdist run`, the others alone."""

import pytest

from tfdist.cluster.membership import Place
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers.launchers import (
    HOROVOD,
    LAUNCHERS,
    MPICH,
    TORCHRUN,
    PMIxResolver,
    has_process_launcher,
)
from tfdist.cluster.resolvers.tf_config import TfdistResolver
from tfdist.cluster.tf_config import dumps

RUN_ID = {"TORCHELASTIC_RUN_ID": "none"}


def env_of(launcher, *numbers):
    """Return the variables of the second process on the second host of two."""
    env = dict(zip(launcher.variables, numbers or ("3", "4", "1", "2"), strict=True))
    env = {name: value for name, value in env.items() if value is not None}
    return env | RUN_ID if launcher is TORCHRUN else env


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda each: each.name)
def test_the_place_is_read(launcher):
    env = env_of(launcher)

    assert launcher.recognises(env)
    assert launcher.resolve(env) == Place(3, 4, 1, 2, launcher.launcher)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda each: each.name)
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


def test_a_rank_of_pmix_without_a_size_is_refused():
    env = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-node1-4711@1"}
    assert PMIxResolver().recognises(env)
    message = (
        "^PMIX_RANK gives the rank of this process, but no variable the number of "
        "processes. Received: PMIX_RANK=1, without OMPI_COMM_WORLD_SIZE. Start the"
    )
    with pytest.raises(ValueError, match=message):
        PMIxResolver().resolve(env)


@pytest.mark.parametrize(
    "others", [{"SLURM_PROCID": "1"}, {"OMPI_MCA_ess": "singleton"}, {"PMIX_RANK": ""}]
)
def test_a_rank_of_pmix_that_says_nothing_is_ignored(others):
    env = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-node1-4711@1"}
    assert not PMIxResolver().recognises(env | others)


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
    assert TfdistResolver().recognises(env)
    assert TfdistResolver().resolve(env) == cluster
    assert TfdistResolver().resolve(env).run_id == "5f2c"


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
        TfdistResolver().resolve(env)

    assert message in str(error.value)
