"""The environment, rendezvous server and tuning of a Horovod job."""

import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.launching.horovod import identity_of, rendezvous
from tfdist.launching.machine import free_ports

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
def test_a_port_that_is_taken(port):
    with socket.create_server(("127.0.0.1", port)):
        message = f"^Horovod's rendezvous .* Received: port {port} .* Run it again"
        with pytest.raises(OSError, match=message), rendezvous(2, port):
            pass


@pytest.mark.requires("horovodrun")
def test_serving_by_hand_ends_with_ctrl_c(port):
    code = f"from tfdist.launching.horovod import serve; serve(2, {port})"
    with subprocess.Popen([sys.executable, "-c", code]) as server:
        while server.poll() is None:
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
        server.send_signal(signal.SIGINT)

        assert server.wait(300) == 0


def test_a_missing_horovod(port, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    message = (
        "^A Horovod job needs Horovod, .* Received: collective='horovod'. "
        "Run `tfdist horovod install`.$"
    )
    with pytest.raises(ModuleNotFoundError, match=message), rendezvous(2, port):
        pass


@pytest.mark.parametrize(
    ("content", "lack"), [(None, "TensorFlow. "), (b"MPIController", "Gloo, ")]
)
def test_a_horovod_that_lacks_a_part(port, installed, content, lack):
    installed(content)
    message = f"^Horovod was built without {lack}.* Run `tfdist horovod install`"
    with pytest.raises(ImportError, match=message), rendezvous(2, port):
        pass
