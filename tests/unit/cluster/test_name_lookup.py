import socket

import pytest

from tfdist.cluster.name_lookup import look_up, lookup_warnings

KNOWN = {
    "a": frozenset({"10.0.0.1"}),
    "b": frozenset({"10.0.0.2", "fe80::2"}),
    "here": frozenset({"127.0.1.1", "::1"}),
    "localhost": frozenset({"127.0.0.1"}),
    "::1": frozenset({"::1"}),
}


def known(host):
    """Look a host up in the table."""
    if host not in KNOWN:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return KNOWN[host]


@pytest.mark.parametrize(
    "workers",
    [
        ("a:1", "b:1"),
        ("here:1",),
        ("here:1", "here:2"),
        ("localhost:1", "[::1]:2"),
    ],
)
def test_names_that_lead_somewhere(workers):
    assert [*lookup_warnings({"worker": workers}, known)] == []


def test_a_name_that_leads_nowhere_is_told_once():
    jobs = {"worker": ("a:1", "X:1", "x:2"), "ps": ("y:1", "x:3")}
    first, second = lookup_warnings(jobs, known)

    assert (first.severity, first.effect) == ("warning", "not reachable")
    assert (first.place, second.place) == ("cluster.worker[1]", "cluster.ps[0]")
    assert first.message.startswith(
        "cluster.worker[1] has a host name that leads nowhere on this machine. "
        "Received: 'x' (Name or service not known). Correct it, or give"
    )


def test_a_name_that_means_this_machine_beside_others():
    (finding,) = lookup_warnings({"worker": ("a:1", "here:1")}, known)

    assert finding.message == (
        "cluster.worker[1] has a host name that means this machine itself here. "
        "Received: 'here', which is 127.0.1.1, ::1. Correct /etc/hosts, or give the "
        "number by which the others reach it."
    )


def test_malformed_addresses_are_left_to_others():
    assert [*lookup_warnings({"worker": ("a:1", "b", ":1")}, known)] == []


def test_the_machine_is_asked():
    assert look_up("127.0.0.1") == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["a" * 300, ".a", "a..b"])
def test_what_is_no_name_at_all_is_not_found(host):
    with pytest.raises(OSError, match="."):
        look_up(host)


def test_a_name_that_cannot_be_encoded_is_not_found(monkeypatch):
    def encode(*args, **options):
        "\ud800".encode("utf-8")

    monkeypatch.setattr(socket, "getaddrinfo", encode)
    with pytest.raises(OSError, match="^it is no host name: 'utf-8' codec can't"):
        look_up("a")
