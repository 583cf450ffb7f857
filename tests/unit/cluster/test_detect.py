import pytest

from tfdist.cluster.detect import (
    PLACE_RESOLVERS,
    RESOLVERS,
    detect,
    detect_place,
    horovod_launcher,
)
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.place import Place
from tfdist.cluster.tf_config import dumps

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
    assert [resolver.name for resolver in RESOLVERS] == ["tfdist", "tf_config"]
    # TF_CONFIG alone would take this for worker 0.
    with pytest.raises(ValueError, match="not the one that `tfdist run` gave"):
        detect({**LAUNCHED, "TFDIST_RANK": "0"})


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
    env = dict(LAUNCHED)
    assert resolver.recognises(env)
    assert resolver.resolve(env) == resolver.resolve(env) == TWO
    assert env == LAUNCHED
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
    ],
)
def test_the_place_of_each_launcher(env, place):
    assert detect_place(env) == place


def test_a_cluster_comes_before_variables_without_addresses():
    place = Place(1, 2, 1, 2, "tfdist run")
    assert detect_place(LAUNCHED | UNDER_HOROVODRUN) == place
    assert detect_place(LAUNCHED | UNDER_MPIRUN) == place


def test_horovodrun_comes_before_the_mpi_that_has_started_it():
    names = [resolver.name for resolver in PLACE_RESOLVERS]
    assert names == ["horovod", "open_mpi", "mpich"]
    assert detect_place(UNDER_MPIRUN | UNDER_HOROVODRUN).launcher == "horovodrun"


@pytest.mark.parametrize("env", [ONE, {"TF_CONFIG": "{}"}])
def test_a_cluster_of_one_does_not_hide_the_launcher(env):
    assert detect_place(env | UNDER_MPIRUN).launcher == "mpirun"
    assert detect_place(env | UNDER_HOROVODRUN).launcher == "horovodrun"


def test_a_run_of_one_process_is_one_process_under_mpirun_too():
    env = {**ONE, "TFDIST_RUN_ID": "5f", "TFDIST_RANK": "0", "TFDIST_SIZE": "1"}
    assert detect_place(env | UNDER_MPIRUN) == Place(launcher="tfdist run")


@pytest.mark.parametrize("launcher", [{}, UNDER_MPIRUN, UNDER_HOROVODRUN])
def test_a_parameter_server_has_no_place(launcher):
    with pytest.raises(ValueError, match="^Only the chief and the workers have a rank"):
        detect_place(PS | launcher)


def test_two_launchers_that_tell_different_ranks_are_refused():
    message = (
        "^HOROVOD_RANK and TF_CONFIG tell different ranks. "
        "Received: rank 0 of 2 from Horovod, rank 1 of 2 from TF_CONFIG. Let one"
    )
    with pytest.raises(ValueError, match=message):
        detect_place({"TF_CONFIG": dumps(TWO), **UNDER_HOROVODRUN, "HOROVOD_RANK": "0"})


def test_a_malformed_place_is_never_passed_over():
    with pytest.raises(ValueError, match="Received: no HOROVOD_SIZE. Start"):
        detect_place(UNDER_MPIRUN | {"HOROVOD_RANK": "1"})


def test_the_place_in_the_environment_of_the_process_is_the_default(monkeypatch):
    for name, value in UNDER_MPIRUN.items():
        monkeypatch.setenv(name, value)
    assert detect_place().rank == 3
    assert detect_place({}) == Place()
    assert horovod_launcher() == "mpirun"


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
    ],
)
def test_who_started_a_process_of_horovod(env, launcher):
    assert horovod_launcher(env) == launcher
