import json

import pytest

from tfdist.cluster.detect import (
    PLACE_RESOLVERS,
    RESOLVERS,
    Explanation,
    LateTFConfig,
    detect,
    detect_membership,
    explain,
)
from tfdist.cluster.membership import Place
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.tf_config import dumps


def place_of(env=None):
    """Return the numbers of a process, whatever they were read from."""
    member = detect_membership(env)
    local = (member.local_rank, member.local_size)
    return Place(member.rank, member.size, *local, member.launcher)


TWO = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"), task=Task("worker", 1))
LAUNCHED = {
    "TF_CONFIG": dumps(TWO),
    "TFDIST_RUN_ID": "5f2c",
    "TFDIST_RANK": "1",
    "TFDIST_SIZE": "2",
}
UNDER_HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
}
UNDER_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
UNDER_MPICH = {
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
}
UNDER_SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}
ONE = {"TF_CONFIG": dumps(Cluster(workers=("127.0.0.1:1",)))}
PS = {
    "TF_CONFIG": dumps(Cluster(workers=("a:1",), ps=("b:1",), task=Task("ps", 0))),
}


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_nothing_described_is_a_process_alone(env):
    assert detect(env) == Cluster()


def test_tf_config_is_enough():
    assert detect({"TF_CONFIG": dumps(TWO)}) == TWO


def test_our_launcher_is_recognised_before_tf_config():
    assert detect(LAUNCHED) == TWO
    names = [resolver.name for resolver in RESOLVERS]
    services = ["kubernetes", "vertex", "sagemaker", "slurm"]
    assert names == ["tfdist", "tf_config", *services]
    # TF_CONFIG alone would take this for worker 0.
    with pytest.raises(ValueError, match="not the one that `tfdist run` gave"):
        detect({**LAUNCHED, "TFDIST_RANK": "0"})


def test_what_was_set_for_the_program_comes_before_the_scheduler():
    assert detect(UNDER_SRUN).addresses[2] == "n10:16584"
    assert detect({"TF_CONFIG": dumps(TWO)} | UNDER_SRUN) == TWO
    assert detect(LAUNCHED | UNDER_SRUN) == TWO
    # So a step of programs that have nothing to do with each other is written.
    assert detect({"TF_CONFIG": "{}"} | UNDER_SRUN) == Cluster()


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", dumps(TWO))
    assert detect() == TWO
    assert detect({}) == Cluster()


def test_a_malformed_description_is_never_passed_over():
    with pytest.raises(ValueError, match=r"^TF_CONFIG has no \"cluster\""):
        detect({"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'})
    with pytest.raises(ValueError, match="^TFDIST_SIZE must be a whole number"):
        detect({**LAUNCHED, "TFDIST_SIZE": "two"})


@pytest.mark.parametrize("resolver", RESOLVERS, ids=lambda resolver: resolver.name)
def test_resolvers_only_read(resolver):
    before = LAUNCHED | UNDER_SRUN | IN_A_POD | ON_VERTEX | ON_SAGEMAKER
    env = dict(before)
    assert resolver.recognises(env)
    assert resolver.resolve(env) == resolver.resolve(env)
    assert env == before
    assert not resolver.recognises({})


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, Place()),
        (ONE, Place()),
        (LAUNCHED, Place(1, 2, 1, 2, "tfdist run")),
        ({"TF_CONFIG": dumps(TWO)}, Place(1, 2, 1, 2, "TF_CONFIG")),
        (UNDER_HOROVODRUN, Place(1, 2, 1, 2, "horovodrun")),
        (UNDER_MPIRUN, Place(3, 4, 1, 2, "mpirun")),
        (UNDER_MPICH, Place(2, 4, 0, 2, "mpirun")),
        (UNDER_SRUN, Place(2, 4, 0, 2, "srun")),
        # `mpirun` and `horovodrun` reach the nodes of a job through steps of their own.
        (UNDER_SRUN | UNDER_MPIRUN, Place(3, 4, 1, 2, "mpirun")),
        (UNDER_SRUN | UNDER_MPICH, Place(2, 4, 0, 2, "mpirun")),
        (UNDER_SRUN | UNDER_HOROVODRUN, Place(1, 2, 1, 2, "horovodrun")),
    ],
)
def test_the_place_of_each_launcher(env, place):
    assert place_of(env) == place


def test_a_cluster_comes_before_variables_without_addresses():
    place = Place(1, 2, 1, 2, "tfdist run")
    assert place_of(LAUNCHED | UNDER_HOROVODRUN) == place
    assert place_of(LAUNCHED | UNDER_MPIRUN) == place


def test_horovodrun_comes_before_the_mpi_that_has_started_it():
    names = [resolver.name for resolver in PLACE_RESOLVERS]
    assert names == ["horovod", "torchrun", "open_mpi", "mpich", "pmix"]
    assert place_of(UNDER_MPIRUN | UNDER_HOROVODRUN).launcher == "horovodrun"


@pytest.mark.parametrize("env", [ONE, {"TF_CONFIG": "{}"}])
def test_a_cluster_of_one_does_not_hide_the_launcher(env):
    assert place_of(env | UNDER_MPIRUN).launcher == "mpirun"
    assert place_of(env | UNDER_HOROVODRUN).launcher == "horovodrun"


def test_a_run_of_one_process_is_one_process_under_mpirun_too():
    env = {**ONE, "TFDIST_RUN_ID": "5f", "TFDIST_RANK": "0", "TFDIST_SIZE": "1"}
    assert place_of(env | UNDER_MPIRUN) == Place(launcher="tfdist run")


@pytest.mark.parametrize("launcher", [{}, UNDER_MPIRUN, UNDER_HOROVODRUN])
def test_a_parameter_server_has_no_place(launcher):
    with pytest.raises(ValueError, match="^Only the chief and the workers have a rank"):
        place_of(PS | launcher)


def test_two_launchers_that_tell_different_ranks_are_refused():
    message = (
        "^HOROVOD_RANK and TF_CONFIG give different ranks. "
        "Received: rank 0 of 2 from Horovod, rank 1 of 2 from TF_CONFIG. Let one"
    )
    with pytest.raises(ValueError, match=message):
        place_of({"TF_CONFIG": dumps(TWO), **UNDER_HOROVODRUN, "HOROVOD_RANK": "0"})


def test_a_malformed_place_is_never_passed_over():
    with pytest.raises(ValueError, match="Received: no HOROVOD_SIZE. Start"):
        place_of(UNDER_MPIRUN | {"HOROVOD_RANK": "1"})


def test_the_place_in_the_environment_of_the_process_is_the_default(monkeypatch):
    for name, value in UNDER_MPIRUN.items():
        monkeypatch.setenv(name, value)
    assert place_of().rank == 3
    assert place_of({}) == Place()
    assert detect_membership().horovod_launcher == "mpirun"


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({}, None),
        ({"HOROVOD_RANK": "", "HOROVOD_SIZE": ""}, None),
        ({"TF_CONFIG": dumps(TWO)}, None),
        (LAUNCHED, None),
        (LAUNCHED | UNDER_MPIRUN, None),
        (PS | UNDER_MPIRUN, None),
        (LAUNCHED | UNDER_HOROVODRUN, "tfdist run"),
        (UNDER_HOROVODRUN, "horovodrun"),
        (UNDER_MPIRUN | UNDER_HOROVODRUN, "horovodrun"),
        (UNDER_MPIRUN, "mpirun"),
        (UNDER_MPICH, "mpirun"),
        (UNDER_SRUN, None),
        (UNDER_SRUN | UNDER_MPIRUN, "mpirun"),
        (UNDER_SRUN | UNDER_HOROVODRUN, "horovodrun"),
    ],
)
def test_who_started_a_process_of_horovod(env, launcher):
    assert detect_membership(env).horovod_launcher == launcher


IN_A_POD = {
    "TFDIST_JOB_NAME": "train",
    "TFDIST_SERVICE": "peers",
    "TFDIST_WORKERS": "2",
    "JOB_COMPLETION_INDEX": "0",
}
ON_VERTEX = {
    "CLUSTER_SPEC": json.dumps(
        {
            "cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]},
            "task": {"type": "workerpool1", "index": 0},
        }
    )
}
ON_SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
UNDER_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}
UNDER_PMIX = {"PMIX_NAMESPACE": "prterun-a-1@1", "PMIX_RANK": "1"}
SERVICES = [IN_A_POD, ON_VERTEX, ON_SAGEMAKER]


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (IN_A_POD, Place(0, 2, 0, 1, "Kubernetes")),
        (ON_VERTEX, Place(1, 2, 0, 1, "Vertex AI")),
        (ON_SAGEMAKER, Place(1, 2, 0, 1, "SageMaker")),
        (UNDER_TORCHRUN, Place(5, 8, 1, 4, "torchrun")),
        (UNDER_MPIRUN | UNDER_PMIX, Place(3, 4, 1, 2, "mpirun")),
    ],
)
def test_the_place_on_each_service_and_under_each_launcher(env, place):
    assert place_of(env) == place


@pytest.mark.parametrize("env", SERVICES)
def test_what_was_set_for_tfdist_comes_before_what_a_service_tells(env):
    assert detect(env | LAUNCHED).run_id == "5f2c"
    assert detect(env | {"TF_CONFIG": dumps(TWO)}) == TWO
    assert detect(env | {"TF_CONFIG": "{}"}) == Cluster()


@pytest.mark.parametrize("env", SERVICES)
@pytest.mark.parametrize("launcher", [UNDER_MPIRUN, UNDER_TORCHRUN, UNDER_MPICH])
def test_a_launcher_inside_a_container_comes_before_the_container(env, launcher):
    assert detect(env | launcher) == Cluster()
    assert place_of(env | launcher) == place_of(launcher)


def test_torchrun_comes_before_the_mpirun_that_has_started_it():
    assert place_of(UNDER_MPIRUN | UNDER_TORCHRUN).launcher == "torchrun"
    assert detect_membership(UNDER_TORCHRUN).horovod_launcher is None


def test_a_rank_of_pmix_alone_is_refused():
    with pytest.raises(ValueError, match="^PMIX_RANK gives the rank of this process"):
        place_of(UNDER_PMIX)


def test_a_membership_without_addresses_has_an_empty_cluster():
    member = detect_membership(UNDER_MPIRUN)

    assert (member.rank, member.trains, member.is_chief) == (3, True, False)
    assert member.cluster == Cluster()
    assert detect_membership(LAUNCHED).cluster == TWO
    assert detect_membership(PS).trains is False


def test_a_place_has_an_impossible_rank_or_size():
    for numbers, problem in [
        ((2, 2), "rank must be from 0 to size - 1. Received: rank=2, size=2, "),
        ((0, 0), "rank must be from 0 to size - 1."),
        ((0, 2, 1, 1), "local_rank must be from 0 to local_size - 1."),
        ((0, 2, 0, 3), "local_size must not be greater than size, as it counts the"),
    ]:
        with pytest.raises(ValueError, match=f"^{problem}.* from mpirun. Start all"):
            Place(*numbers, launcher="mpirun")


def test_an_explanation_names_the_variables_and_the_later_resolvers():
    found = explain(LAUNCHED)

    assert (found.resolver, found.launcher) == ("tfdist", "tfdist run")
    assert set(found.variables) == {*LAUNCHED}
    assert found.others == ("tf_config",)
    assert explain({"PATH": "/bin"}) == Explanation(Cluster())


def test_an_explanation_of_a_launcher_without_addresses():
    found = explain(UNDER_MPICH)

    assert (found.resolver, found.launcher) == ("", "mpirun")
    assert (found.place.rank, found.place.size) == (2, 4)
    assert {*found.variables} == {*UNDER_MPICH}


@pytest.mark.parametrize("before", [{}, {"TF_CONFIG": "{}"}])
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
