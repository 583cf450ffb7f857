"""Launchers that give numbers and no addresses."""

import pytest

from tfdist.cluster.membership import Place
from tfdist.cluster.resolvers.launchers import (
    HOROVOD,
    MPICH,
    OPEN_MPI,
    TORCHRUN,
    PMIxResolver,
    has_process_launcher,
)

LAUNCHERS = (HOROVOD, TORCHRUN, OPEN_MPI, MPICH)
RUN_ID = {"TORCHELASTIC_RUN_ID": "none"}


def env_of(launcher, *numbers):
    """Return the variables of the second process on the second host of two."""
    names = (launcher.rank, launcher.size, launcher.local_rank, launcher.local_size)
    env = dict(zip(names, numbers or ("3", "4", "1", "2"), strict=True))
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
        ((None, "4", "1", "2"), "{0.rank} must be a whole number, as `"),
        (("3", None, "1", "2"), "{0.size} must be a whole number, as `"),
        (("3", "4", None, "2"), "{0.local_rank} must be a whole number, as `"),
        (("-1", "4", "1", "2"), "{0.rank} must be a whole number, as `"),
        (("3", "four", "1", "2"), "{0.size} must be a whole number, as `"),
        (("3", "9" * 5000, "1", "2"), "{0.size} must be a whole number, as `"),
        (("3", "4", "0.5", "2"), "{0.local_rank} must be a whole number, as `"),
        (("4", "4", "1", "2"), "rank must be from 0 to size - 1. Received: rank=4, "),
        (("3", "4", "2", "2"), "local_rank must be from 0 to local_size - 1. Receive"),
        (("3", "4", "1", "5"), "local_size must not be greater than size, as it coun"),
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


def test_a_virtual_local_rank_is_the_same_for_all():
    assert TORCHRUN.resolve(env_of(TORCHRUN, "3", "4", "0", "2")).local_rank == 0


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
