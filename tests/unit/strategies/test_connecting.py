import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from tfdist.cluster import Cluster, Task, tf_config
from tfdist.collectives.single import SingleCollective
from tfdist.strategies import connecting
from tfdist.strategies.connecting import connect, connect_horovod

HOROVOD = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
OPEN_MPI = tuple(
    f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
)
NAMES = ", ".join(OPEN_MPI)
PALS = ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE")
ADDRESSES = "TF_CONFIG"
MODULE = "tfdist.collectives.horovod.collective"
PEERS = "tfdist.collectives.horovod.peers"


def module(name, **content):
    """Return a module for `sys.modules` in place of one that is not installed."""
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(content)
    return made


class Engine:
    """Stands for Horovod, and for TensorFlow's collectives; it notes what is made."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.made = []
        functions = {
            "TensorFlowCollective": self.tensorflow,
            "check_not_started": lambda: None,
        }
        for name, function in functions.items():
            monkeypatch.setattr(connecting, name, function)
        self.has_horovod()
        self.has_mpi(False)

    def tensorflow(self, cluster, **timeouts):
        self.made.append(("tensorflow", cluster.size, timeouts))
        return "TensorFlow's"

    def has_horovod(self, joins=2):
        check = {"check_process_set": lambda process_set: None}
        self._put("horovod")
        self._put(MODULE, HorovodCollective=self.horovod, **check)
        self._put(PEERS, start=lambda place: self.starts(place, joins))

    def has_no_horovod(self):
        for name in ("horovod", MODULE):
            self._monkeypatch.setitem(sys.modules, name, None)

    def has_mpi(self, is_found=True):
        if not is_found:
            for name in ("mpi4py", "mpi4py.MPI"):
                self._monkeypatch.setitem(sys.modules, name, None)
            return
        self._put("mpi4py", rc=SimpleNamespace())
        self._put("mpi4py.MPI", Is_initialized=lambda: False)
        self._put(
            "tfdist.collectives.mpi",
            start=lambda member, timeout_seconds: None,
            MPICollective=self.mpi,
        )

    def _put(self, name, **content):
        self._monkeypatch.setitem(sys.modules, name, module(name, **content))

    def mpi(self, **timeouts):
        self.made.append(("mpi", timeouts))
        return "MPI's"

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


def by_tfdist_run(monkeypatch, *hosts):
    """Be rank 0 of two that `tfdist run` has started as ranks of MPI."""
    in_cluster(monkeypatch, *(f"{host}:{i + 1}" for i, host in enumerate(hosts)))
    started_by(monkeypatch, OPEN_MPI)
    local = len([host for host in hosts if host == hosts[0]])
    facts = {"RUN_ID": 1, "RANK": 0, "SIZE": 2, "LOCAL_RANK": 0, "LOCAL_SIZE": local}
    for name, value in facts.items():
        monkeypatch.setenv(f"TFDIST_{name}", str(value))


@pytest.mark.parametrize("name", ["auto", "tensorflow"])
def test_a_single_process_needs_no_collective(name, engine, capsys):
    assert isinstance(connect(name), SingleCollective)
    assert engine.made == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("variables", [HOROVOD, OPEN_MPI])
def test_one_process_of_a_launcher_needs_no_horovod(variables, engine, monkeypatch):
    engine.has_no_horovod()
    started_by(monkeypatch, variables, size=1)

    assert isinstance(connect("auto"), SingleCollective)


def test_horovod_with_one_process_has_no_overhead(engine):
    engine.has_horovod(joins=1)

    assert isinstance(connect("horovod"), SingleCollective)
    assert engine.made == [("start", 0, 1)]


@pytest.mark.parametrize(
    ("name", "given", "installed", "expected"),
    [
        ("auto", [ADDRESSES], ["horovod"], "TensorFlow"),
        ("tensorflow", [ADDRESSES], ["horovod"], "TensorFlow"),
        ("auto", [ADDRESSES, OPEN_MPI], ["horovod"], "TensorFlow"),
        ("horovod", [ADDRESSES, OPEN_MPI], ["horovod"], "Horovod"),
        ("auto", [ADDRESSES, HOROVOD], ["horovod"], "Horovod"),
        ("tensorflow", [ADDRESSES, HOROVOD], ["horovod"], "TensorFlow"),
        ("auto", [ADDRESSES, HOROVOD], [], "TensorFlow"),
        ("auto", [HOROVOD], ["horovod"], "Horovod"),
        ("auto", [HOROVOD], ["horovod", "mpi"], "Horovod"),
        ("auto", [OPEN_MPI], ["horovod"], "Horovod"),
        ("auto", [OPEN_MPI], ["horovod", "mpi"], "MPI"),
        ("auto", [PALS], ["mpi"], "MPI"),
        ("horovod", [OPEN_MPI], ["horovod"], "Horovod"),
    ],
)
def test_the_environment_chooses_the_engine(
    name, given, installed, expected, engine, monkeypatch
):
    if "horovod" not in installed:
        engine.has_no_horovod()
    engine.has_mpi("mpi" in installed)
    for variables in given:
        if variables == ADDRESSES:
            in_cluster(monkeypatch, "a:1", "b:1")
        else:
            started_by(monkeypatch, variables)

    assert connect(name, timeout_seconds=3.0) == f"{expected}'s"
    assert engine.made[-1][-1] == {"timeout_seconds": 3.0}


@pytest.mark.parametrize(("hosts", "is_one"), [("aa", True), ("ab", False)])
def test_mpi_within_a_host_says_why(hosts, is_one, engine, monkeypatch, capsys):
    engine.has_mpi()
    by_tfdist_run(monkeypatch, *hosts)

    assert connect("auto") == "MPI's"

    assert capsys.readouterr().err == (
        "tfdist: tfdist run has started 2 processes; the collectives of MPI, which "
        "mpi4py has found, join them."
        + " MPI is the fastest within a host; `tfdist run --collective tensorflow` "
        "does without." * is_one + "\n"
    )


def test_horovod_does_not_start_as_ranks_of_mpi(engine, monkeypatch):
    engine.has_horovod(joins=2)
    by_tfdist_run(monkeypatch, "a", "a")

    message = (
        "^collective='horovod' needs what `tfdist run` gives with --collective hor"
    )
    with pytest.raises(RuntimeError, match=message):
        connect("horovod")
    assert engine.made == []


def test_a_program_that_has_started_horovod_keeps_it(engine, monkeypatch):
    engine.has_mpi()
    started_by(monkeypatch, OPEN_MPI)
    started = {"is_initialized": lambda: True, "size": lambda: 2, "rank": lambda: 0}
    name = "horovod.tensorflow"
    monkeypatch.setitem(sys.modules, name, module(name, **started))

    assert connect("auto") == "Horovod's"


@pytest.mark.parametrize("variables", [{}, {"PMIX_RANK": "0"}])
def test_mpi_joins_the_tasks_of_srun_with_pmix(variables, engine, monkeypatch):
    engine.has_mpi()
    task = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_PROCID": "0",
    }
    for name, value in (task | variables).items():
        monkeypatch.setenv(name, value)

    assert connect("auto") == ("MPI's" if variables else "TensorFlow's")


@pytest.mark.parametrize(
    ("name", "rank", "is_told"),
    [("auto", 0, True), ("auto", 1, False), ("horovod", 0, False)],
)
def test_the_chief_tells_the_engine_that_auto_chose(
    name, rank, is_told, engine, monkeypatch, capsys
):
    started_by(monkeypatch, OPEN_MPI, rank=rank)
    connect(name)

    text = "tfdist: mpirun has started 2 processes; the collectives of Horovod join "
    assert capsys.readouterr() == ("", f"{text}them.\n" if is_told else "")


# Refusals.


@pytest.mark.parametrize("name", ["gloo", None])
def test_an_unknown_name_is_refused(name):
    text = (
        "collective must be one of auto, tensorflow, mpi, horovod, or a Collective. "
        f"Received: collective={name!r}. Use 'auto' for what fits the environment."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect(name)


@pytest.mark.parametrize(
    ("ps", "task", "text"),
    [
        (
            (),
            "evaluator",
            "Only the chief and the workers may create this strategy. Received: a task "
            "'evaluator'. Start the chief and the workers only.",
        ),
        *(
            (
                ("b:1",),
                task,
                "This strategy has no parameter servers, and this job has. Received: a "
                "cluster with ps=['b:1']. Make ParameterServerStrategy instead, or "
                "start the program with `tfdist run -np N`.",
            )
            for task in ("ps", "worker")
        ),
    ],
)
def test_a_job_of_another_kind_is_refused(ps, task, text, engine, monkeypatch):
    cluster = Cluster(workers=("a:1",), ps=ps, task=Task(task, 0))
    monkeypatch.setenv("TF_CONFIG", tf_config.dumps(cluster))
    with pytest.raises(ValueError, match=re.escape(text)):
        connect("auto")
    assert engine.made == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "auto",
            "Nothing connects the processes that mpirun has started. Received: rank 1 "
            f"of 2 ({NAMES}), without TF_CONFIG and without Horovod and mpi4py. Run "
            "pip install 'tfdist[mpi]', or start the program with `tfdist run`.",
        ),
        (
            "tensorflow",
            "collective='tensorflow' needs the addresses of all processes, which "
            f"mpirun does not give. Received: rank 1 of 2 ({NAMES}), without "
            "TF_CONFIG. Start the program with `tfdist run`; mpirun needs "
            "collective='mpi' or 'horovod', and horovodrun 'horovod'.",
        ),
    ],
)
def test_processes_that_nothing_connects_are_refused(name, text, engine, monkeypatch):
    engine.has_no_horovod()
    started_by(monkeypatch, OPEN_MPI, rank=1)
    with pytest.raises(ValueError, match=re.escape(text)):
        connect(name)


def test_a_launcher_of_a_site_needs_its_own_mpi(engine, monkeypatch):
    engine.has_no_horovod()
    started_by(monkeypatch, PALS, rank=1)
    text = (
        "Nothing connects the processes that mpiexec has started. Received: rank 1 of "
        f"2 ({', '.join(PALS)}), without TF_CONFIG and without Horovod and mpi4py. Run "
        "pip install --no-binary=mpi4py mpi4py, or start the program with `tfdist run`."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        connect("auto")


def test_horovod_must_be_built_for_this_tensorflow(engine, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == MODULE:
                raise OSError("mpi_lib.so: undefined symbol: _ZN10tensorflow6Status")

    monkeypatch.delitem(sys.modules, MODULE)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    text = (
        "collective='horovod' needs Horovod, built for this TensorFlow. Received: "
        "OSError: mpi_lib.so: undefined symbol: _ZN10tensorflow6Status. Run `tfdist "
        "horovod install` in this environment; `tfdist horovod check` says what is "
        "wrong."
    )
    with pytest.raises(ImportError, match=re.escape(text)):
        connect("horovod")
    engine.has_no_horovod()
    with pytest.raises(ImportError, match="Received: ModuleNotFoundError: "):
        connect_horovod()


@pytest.mark.parametrize(
    ("options", "is_launched", "pinned"),
    [
        ({}, True, [(0, 1)]),
        ({"takes_all_gpus": True}, True, []),
        ({}, False, []),
    ],
    ids=["launched", "launched for all GPUs", "without a launcher"],
)
def test_only_tfdist_run_leaves_one_gpu_to_a_process_alone(
    options, is_launched, pinned, monkeypatch
):
    if is_launched:
        in_cluster(monkeypatch, "a:1")
        for name, value in {"RUN_ID": 1, "RANK": 0, "SIZE": 1}.items():
            monkeypatch.setenv(f"TFDIST_{name}", str(value))
    given = []
    functions = {"has_started": lambda: False, "pin": lambda *at: given.append(at)}
    for name, function in functions.items():
        monkeypatch.setattr(connecting, name, function)

    assert isinstance(connect("tensorflow", **options), SingleCollective)
    assert given == pinned
