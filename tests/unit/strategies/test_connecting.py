import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.collectives import SingleCollective
from tfdist.strategies import connecting
from tfdist.strategies.connecting import connect, connect_horovod

HOROVOD = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
OPEN_MPI = tuple(
    f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)
MODULE = "tfdist.collectives.horovod.collective"
PEERS = "tfdist.collectives.horovod.peers"


class Engine:
    """Stands for Horovod, and for TensorFlow's collectives; it notes what is made."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.made = []
        monkeypatch.setattr(connecting, "TensorFlowCollective", self.tensorflow)
        self.has_horovod()

    def tensorflow(self, cluster, **timeouts):
        self.made.append(("tensorflow", cluster.size, timeouts))
        return "TensorFlow's"

    def has_horovod(self, joins=2):
        module, peers = ModuleType(MODULE), ModuleType(PEERS)
        module.HorovodCollective = self.horovod
        module.check_process_set = lambda process_set: None
        peers.start = lambda place: self.starts(place, joins)
        self._monkeypatch.setitem(sys.modules, MODULE, module)
        self._monkeypatch.setitem(sys.modules, PEERS, peers)
        self.finds(SimpleNamespace(name="horovod"))

    def has_no_horovod(self):
        self.finds(None)
        self._monkeypatch.setitem(sys.modules, MODULE, None)

    def finds(self, spec):
        find = connecting.find_spec
        self._monkeypatch.setattr(
            connecting,
            "find_spec",
            lambda name: spec if name == "horovod" else find(name),
        )

    def starts(self, place, size):
        self.made.append(("start", place.rank, place.size))
        return size

    def horovod(self, process_set=None, **timeouts):
        self.made.append(("horovod", process_set, timeouts))
        return "Horovod's"


@pytest.fixture
def engine(monkeypatch):
    return Engine(monkeypatch)


def started_by(monkeypatch, variables, rank=0, size=2):
    for name, value in zip(variables, (rank, size, rank, size), strict=True):
        monkeypatch.setenv(name, str(value))


def in_cluster(monkeypatch, *workers, task=("worker", 0)):
    cluster = Cluster(workers=workers, task=Task(*task))
    monkeypatch.setenv("TF_CONFIG", tf_config.dumps(cluster))


# Which collective.


@pytest.mark.parametrize("name", ["auto", "tensorflow"])
def test_a_process_alone_needs_no_others(name, engine, capsys):
    assert isinstance(connect(name), SingleCollective)
    assert engine.made == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("variables", [HOROVOD, OPEN_MPI])
@pytest.mark.parametrize("name", ["auto", "horovod"])
def test_processes_of_horovod_are_joined_by_it(name, variables, engine, monkeypatch):
    started_by(monkeypatch, variables, rank=1, size=2)

    assert connect(name, timeout_seconds=3.0) == "Horovod's"
    assert engine.made == [
        ("start", 1, 2),
        ("horovod", None, {"timeout_seconds": 3.0}),
    ]


@pytest.mark.parametrize("name", ["auto", "tensorflow"])
def test_processes_that_know_addresses_are_joined_by_tensorflow(
    name, engine, monkeypatch
):
    in_cluster(monkeypatch, "a:1", "b:1")

    assert connect(name, timeout_seconds=3.0) == "TensorFlow's"
    assert engine.made == [("tensorflow", 2, {"timeout_seconds": 3.0})]


def test_addresses_are_worth_more_than_the_numbers_of_mpi(engine, monkeypatch):
    in_cluster(monkeypatch, "a:1", "b:1")
    started_by(monkeypatch, OPEN_MPI)

    assert connect("auto") == "TensorFlow's"
    assert connect("horovod") == "Horovod's"


def test_addresses_in_a_job_of_horovod_serve_whoever_asks_for_them(engine, monkeypatch):
    in_cluster(monkeypatch, "a:1", "b:1")
    started_by(monkeypatch, HOROVOD)

    assert connect("auto") == "Horovod's"
    assert connect("tensorflow") == "TensorFlow's"


@pytest.mark.parametrize("variables", [HOROVOD, OPEN_MPI])
def test_one_process_of_a_launcher_needs_no_horovod(variables, engine, monkeypatch):
    engine.has_no_horovod()
    started_by(monkeypatch, variables, size=1)

    assert isinstance(connect("auto"), SingleCollective)


def test_horovod_with_one_process_costs_nothing(engine):
    engine.has_horovod(joins=1)

    assert isinstance(connect("horovod"), SingleCollective)
    assert engine.made == [("start", 0, 1)]


def test_a_process_set_reaches_the_collective(engine):
    connect_horovod("a set", start_timeout_seconds=1.0)

    assert engine.made[-1] == ("horovod", "a set", {"start_timeout_seconds": 1.0})


# What the chief says.


@pytest.mark.parametrize(
    ("variables", "launcher"), [(HOROVOD, "horovodrun"), (OPEN_MPI, "mpirun")]
)
def test_the_chief_says_that_horovod_was_chosen(
    variables, launcher, engine, monkeypatch, capsys
):
    started_by(monkeypatch, variables, size=2)

    connect("auto")

    assert capsys.readouterr() == (
        "",
        f"tfdist: {launcher} has started 2 processes; the collectives of Horovod join "
        "them.\n",
    )


def test_the_chief_says_that_tensorflow_was_chosen(engine, monkeypatch, capsys):
    in_cluster(monkeypatch, "a:1", "b:1", "c:1")

    connect("auto")

    assert capsys.readouterr().err == (
        "tfdist: TF_CONFIG has started 3 processes; the collectives of TensorFlow join "
        "them.\n"
    )


def test_the_others_say_nothing(engine, monkeypatch, capsys):
    started_by(monkeypatch, HOROVOD, rank=1)
    connect("auto")

    assert capsys.readouterr() == ("", "")


def test_what_was_asked_for_is_not_news(engine, monkeypatch, capsys):
    started_by(monkeypatch, HOROVOD)
    connect("horovod")

    assert capsys.readouterr() == ("", "")


# What is refused.


@pytest.mark.parametrize("name", ["mpi", "Horovod", "", None])
def test_an_unknown_name_is_refused(name):
    text = (
        "collective must be one of auto, tensorflow, horovod, or a Collective. "
        f"Received: collective={name!r}. Use 'auto' for what fits the environment."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect(name)


@pytest.mark.parametrize("name", ["auto", "horovod", "tensorflow"])
@pytest.mark.parametrize("task", ["ps", "evaluator"])
def test_who_does_not_train_is_refused(name, task, engine, monkeypatch):
    cluster = Cluster(workers=("a:1",), ps=("b:1",), task=Task(task, 0))
    monkeypatch.setenv("TF_CONFIG", tf_config.dumps(cluster))
    text = (
        "Only the chief and the workers may create this strategy. Received: a task "
        f"'{task}'. Start the chief and the workers only."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect(name)
    assert engine.made == []


@pytest.mark.parametrize(
    ("variables", "launcher"), [(HOROVOD, "horovodrun"), (OPEN_MPI, "mpirun")]
)
def test_processes_that_nothing_joins_do_not_train_each_by_itself(
    variables, launcher, engine, monkeypatch
):
    engine.has_no_horovod()
    started_by(monkeypatch, variables, rank=1, size=2)
    text = (
        f"Nothing connects the processes that {launcher} has started. Received: rank 1 "
        "of 2, without TF_CONFIG and without Horovod. Run `tfdist horovod install`, or "
        "start the program with `tfdist run`."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect("auto")


def test_addresses_join_where_there_is_no_horovod(engine, monkeypatch):
    engine.has_no_horovod()
    in_cluster(monkeypatch, "a:1", "b:1")
    started_by(monkeypatch, HOROVOD)

    assert connect("auto") == "TensorFlow's"


@pytest.mark.parametrize(
    ("variables", "launcher"), [(HOROVOD, "horovodrun"), (OPEN_MPI, "mpirun")]
)
def test_tensorflow_cannot_join_processes_without_addresses(
    variables, launcher, engine, monkeypatch
):
    started_by(monkeypatch, variables, rank=1, size=2)
    text = (
        "collective='tensorflow' needs the addresses of all processes, which "
        f"{launcher} does not give. Received: rank 1 of 2, without TF_CONFIG. Use "
        "collective='horovod', or start the program with `tfdist run`."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect("tensorflow")


@pytest.mark.parametrize("make", [lambda: connect("horovod"), connect_horovod])
def test_horovod_must_be_installed(make, engine):
    engine.has_no_horovod()
    text = (
        "collective='horovod' needs Horovod. Received: no module 'horovod'. "
        "Run `tfdist horovod install` in this environment."
    )
    with pytest.raises(ImportError, match=re.escape(text)):
        make()


def test_horovod_must_be_one_for_this_tensorflow(engine, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == MODULE:
                raise OSError("mpi_lib.so: undefined symbol: _ZN10tensorflow6Status")

    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    text = (
        "Horovod is installed, but cannot be used with this TensorFlow. Received: "
        "OSError: mpi_lib.so: undefined symbol: _ZN10tensorflow6Status. Run `tfdist "
        "horovod check`, which says what is wrong; `tfdist horovod install --force` "
        "builds it again."
    )
    with pytest.raises(ImportError, match=re.escape(text)):
        connect("horovod")
