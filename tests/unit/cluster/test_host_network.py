import socket
import threading

import pytest

from tfdist.cluster.hosts import resources as host_network
from tfdist.cluster.hosts.resources import network_facts


@pytest.fixture
def root(tmp_path):
    """Return a root with the files of a kernel."""
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text(
        "fe80000000000000000000000000a001 02 40 20 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
    )
    ports = tmp_path / "proc/sys/net/ipv4/ip_local_port_range"
    ports.write_text("32768\t60999\n")
    return tmp_path


def known(host):
    return frozenset({"10.0.0.2", "10.0.0.1"})


def test_names_and_addresses(root):
    facts = network_facts(root, known)

    assert facts["host_name"] == socket.gethostname()
    assert facts["its_name_leads_to"] == ["10.0.0.1", "10.0.0.2"]
    assert "lo 127.0.0.1" in facts["ipv4_addresses"]
    assert facts["ipv6_addresses"] == ["eth0 fe80::a001", "lo ::1"]
    assert facts["outgoing_ports"] == "32768-60999"


def test_a_name_that_leads_nowhere(root):
    def unknown(host):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    said = network_facts(root, unknown)["its_name_leads_to"]

    assert said == "nowhere: Name or service not known"


def test_a_name_server_that_does_not_answer(root, monkeypatch):
    monkeypatch.setattr(host_network, "_LOOK_UP_SECONDS", 0.1)
    answer = threading.Event()

    def slow(host):
        answer.wait(20)
        return frozenset()

    assert network_facts(root, slow)["its_name_leads_to"] == (
        "nowhere: no answer in 0.1 s"
    )
    answer.set()


def test_a_system_that_does_not_tell(tmp_path, monkeypatch):
    import fcntl

    def unknown(*args):
        raise OSError("Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "ioctl", unknown)
    facts = network_facts(tmp_path, known)

    assert facts["host_name"]
    assert facts["ipv4_addresses"] is None
    assert facts["ipv6_addresses"] is None
    assert facts["outgoing_ports"] is None
