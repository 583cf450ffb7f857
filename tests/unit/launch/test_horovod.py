"""The environment, rendezvous server and tuning of a Horovod job."""

import math
import socket
import sys
import sysconfig
import urllib.error
import urllib.request

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.launch.horovod import (
    IDENTITY_VARIABLES,
    TUNING_OPTIONS,
    identity_of,
    rendezvous,
    serve,
    tuning_variables,
)
from tfdist.launch.machine import free_ports

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
THREE = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))


@pytest.fixture
def port():
    return free_ports(1)[0]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a Horovod whose library holds some bytes."""

    def install(content=None):
        folder = tmp_path / "horovod"
        (folder / "tensorflow").mkdir(parents=True)
        (folder / "__init__.py").touch()
        if content is not None:
            (folder / "tensorflow" / f"mpi_lib{SUFFIX}").write_bytes(content)
        for name in [n for n in sys.modules if n.split(".")[0] == "horovod"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_each_process_knows_who_it_is():
    cluster = Cluster(workers=THREE.workers, task=Task("worker", 2))

    env = identity_of(cluster, 2000)

    assert env == {
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "2",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "2000",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
    }
    assert {*env, "HOROVOD_ELASTIC"} == set(IDENTITY_VARIABLES)


@pytest.mark.requires("horovodrun")
def test_the_variables_are_those_of_horovods_own_runner():
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

    slots = get_host_assignments(parse_hosts("localhost:3"), 3)
    for rank, slot in enumerate(slots):
        cluster = Cluster(workers=THREE.workers, task=Task("worker", rank))
        theirs = create_slot_env_vars(slot)
        theirs |= create_run_env_vars("127.0.0.1", {"lo"}, 2000)
        del theirs["NCCL_SOCKET_IFNAME"]  # In plan.py, where users may set another.
        ours = identity_of(cluster, 2000)
        assert ours == {name: str(value) for name, value in theirs.items()}


@pytest.mark.requires("horovodrun")
def test_the_server_keeps_what_the_processes_leave_there(port):
    url = f"http://127.0.0.1:{port}/global/key"
    with rendezvous(2, port):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url)
        put = urllib.request.Request(url, data=b"value", method="PUT")
        with urllib.request.urlopen(put) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == b"value"

    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url)


@pytest.mark.requires("horovodrun")
def test_the_server_listens_on_one_address_of_this_machine(port):
    with rendezvous(2, port):
        socket.create_connection(("127.0.0.1", port)).close()
        # Whoever listens on all addresses listens on this one too.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


@pytest.mark.requires("horovodrun")
def test_a_port_that_is_taken(port):
    with socket.create_server(("127.0.0.1", port)):
        message = f"^Horovod's rendezvous .* Received: port {port} .* Run it again"
        with pytest.raises(OSError, match=message), rendezvous(2, port):
            pass


@pytest.mark.requires("horovodrun")
def test_serving_by_hand_ends_with_ctrl_c(port, monkeypatch):
    answers = []

    def interrupt():
        with socket.create_connection(("127.0.0.1", port)) as connection:
            answers.append(connection.getpeername())
        raise KeyboardInterrupt

    monkeypatch.setattr("signal.pause", interrupt)

    serve(2, port)

    assert answers == [("127.0.0.1", port)]


def test_a_missing_horovod(port, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    message = (
        "^A Horovod job needs Horovod, .* Received: collective='horovod'. "
        "Run `tfdist horovod install`.$"
    )
    with pytest.raises(ModuleNotFoundError, match=message), rendezvous(2, port):
        pass


def test_a_horovod_without_tensorflow(port, installed):
    installed()
    message = "^Horovod was built without TensorFlow. .* Run `tfdist horovod install`"
    with pytest.raises(ImportError, match=message), rendezvous(2, port):
        pass


def test_a_horovod_without_gloo(port, installed):
    installed(b"MPIController")
    message = "^Horovod was built without Gloo, .* Run `tfdist horovod install`"
    with pytest.raises(ImportError, match=message), rendezvous(2, port):
        pass


@pytest.mark.parametrize("value", [None, False])
def test_what_is_not_given_sets_nothing(value):
    assert tuning_variables({}) == {}
    assert tuning_variables(dict.fromkeys(TUNING_OPTIONS, value)) == {}


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"fusion_threshold_mb": 2}, {"HOROVOD_FUSION_THRESHOLD": "2097152"}),
        ({"fusion_threshold_mb": 0}, {"HOROVOD_FUSION_THRESHOLD": "0"}),
        ({"cycle_time_ms": 0.5}, {"HOROVOD_CYCLE_TIME": "0.5"}),
        ({"cache_capacity": 0}, {"HOROVOD_CACHE_CAPACITY": "0"}),
        (
            {"timeline": "/a/b.json", "timeline_mark_cycles": True},
            {"HOROVOD_TIMELINE": "/a/b.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
        ),
        (
            {"autotune": True, "autotune_log_file": "/a/b"},
            {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "/a/b"},
        ),
        ({"no_stall_check": True}, {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (
            {
                "stall_check_warning_time_seconds": 5,
                "stall_check_shutdown_time_seconds": 5,
            },
            {
                "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
            },
        ),
        (
            {"stall_check_shutdown_time_seconds": 0},
            {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"},
        ),
        ({"log_level": "DEBUG"}, {"HOROVOD_LOG_LEVEL": "DEBUG"}),
    ],
)
def test_each_option_has_its_variable(options, variables):
    assert tuning_variables(options) == variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fusion_threshold_mb", -1),
        ("cycle_time_ms", -0.5),
        ("cycle_time_ms", math.inf),
        ("cycle_time_ms", math.nan),
        ("cache_capacity", -1),
        ("stall_check_warning_time_seconds", -1),
        ("stall_check_shutdown_time_seconds", -1),
    ],
)
def test_impossible_numbers_are_refused(name, value):
    option = "--" + name.replace("_", "-")
    message = (
        f"^{option} must not be negative, nor infinite. Received: {option} {value}. Use"
    )
    with pytest.raises(ValueError, match=message):
        tuning_variables({name: value})


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("timeline_mark_cycles", True, "--timeline"),
        ("autotune_log_file", "a", "--autotune"),
    ],
)
def test_what_has_no_effect_alone_is_refused(name, value, other):
    option = "--" + name.replace("_", "-")
    message = (
        f"^{option} has no effect without {other}. Received: {option} alone. Give "
    )
    with pytest.raises(ValueError, match=message):
        tuning_variables({name: value})


@pytest.mark.parametrize("time", ["warning", "shutdown"])
def test_times_of_a_check_that_is_off_are_refused(time):
    name = f"stall_check_{time}_time_seconds"
    message = f"^--stall-check-{time}-time-seconds has no effect with --no-stall-check"
    with pytest.raises(ValueError, match=f"{message}. Received: both. Leave one"):
        tuning_variables({name: 90, "no_stall_check": True})


@pytest.mark.parametrize("warning", [None, 60])
def test_an_end_before_the_warning_is_refused(warning):
    options = {
        "stall_check_shutdown_time_seconds": 59,
        "stall_check_warning_time_seconds": warning,
    }
    message = "Received: 59 s, with a warning after 60 s. Give a longer time"
    with pytest.raises(ValueError, match=message):
        tuning_variables(options)
