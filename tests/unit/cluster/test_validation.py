import re
import socket

import pytest

from tfdist.cluster.address import look_up
from tfdist.cluster.validation import (
    cluster_warnings,
    lookup_warnings,
    wrong_addresses,
    wrong_task,
)

WORKERS = ("a:1", "b:1")
JOBS = {"chief": ("c:1",), "worker": WORKERS, "ps": ("p:1",)}


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"chief": ("a:1",), "worker": ("A:01",)}, r"worker\[0\] has the same address"),
        ({"worker": ("[::1]:1", "[0::1]:1")}, r"worker\[1\] has the same address"),
        ({"worker": ("node1:1", "127.0.0.1:1")}, r"worker\[1\] is on 127\.0\.0\.1"),
        ({"worker": ("a:1",), "ps": ("a:2", "b")}, r"ps\[1\] has no port"),
    ],
)
def test_impossible_addresses_are_refused_with_their_place(jobs, message):
    (finding,) = wrong_addresses(jobs)

    assert re.match(rf"cluster\.{message}.* Received: ", finding.message)


@pytest.mark.parametrize(
    ("task_type", "index", "jobs", "message"),
    [
        ("worker", 0, {}, ""),
        ("worker", 1, JOBS, ""),
        ("evaluator", 7, JOBS, ""),
        ("worker", 2, JOBS, "task.index must be from 0 to 1, as cluster.worker has "),
        ("chief", 0, {"worker": WORKERS}, "task.type names a job that the cluster "),
        ("chief", 0, {}, "task.type names a job that the cluster does not have."),
        ("evaluator", 0, {}, "task.type names a job that the cluster does not have."),
        ("ps", 0, {"ps": ("p:1",)}, "cluster has neither a chief nor a worker, "),
    ],
)
def test_the_task_is_in_the_cluster(task_type, index, jobs, message):
    found = [finding.message for finding in wrong_task(task_type, index, jobs)]

    assert len(found) == bool(message)
    assert "".join(found).startswith(message)


@pytest.mark.parametrize(
    ("jobs", "place", "effect", "message"),
    [
        (
            {"worker": ("a:1",)},
            "cluster.worker",
            "trains alone",
            "cluster has a single process that trains. Received: 'a:1'. List the add",
        ),
        (
            {"worker": WORKERS, "ps": ("p:1",)},
            "cluster.ps",
            "hang",
            "cluster has parameter servers, but no chief. Received: only worker, ps. ",
        ),
        (
            {"chief": ("c:1",), "ps": ("p:1",)},
            "cluster.ps",
            "refused",
            "cluster has parameter servers, but no worker. Received: only chief, ps. ",
        ),
        (
            {"worker": WORKERS, "evaluator": ("e:1",)},
            "cluster.evaluator",
            "left out",
            "cluster lists an evaluator among the processes that train together. "
            "Received: e:1. Leave the job out of cluster",
        ),
        (
            {"worker": ("a:32767", "a:32768", "b:60999")},
            "cluster.worker[1]",
            "port taken",
            "cluster.worker[1] has a port from the range of outgoing connections, "
            "32768 to 60999. Received: 'a:32768'. Use ports below 32768",
        ),
    ],
)
def test_a_doubtful_cluster_has_a_warning(jobs, place, effect, message):
    (finding,) = cluster_warnings(jobs)

    assert (finding.severity, finding.place) == ("warning", place)
    assert finding.effect == effect
    assert finding.message.startswith(message)


@pytest.mark.parametrize("jobs", [{}, JOBS, {"worker": ("a:32767", "b:61000")}])
def test_a_usual_cluster_has_no_warning(jobs):
    assert [*cluster_warnings(jobs)] == []


KNOWN = {
    "a": frozenset({"10.0.0.1"}),
    "here": frozenset({"127.0.1.1", "::1"}),
    "localhost": frozenset({"127.0.0.1"}),
}


def known(host):
    """Look a host up in the table."""
    if host not in KNOWN:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return KNOWN[host]


@pytest.mark.parametrize(
    ("jobs", "places", "message"),
    [
        ({"worker": ("a:1", "localhost:2", "b", ":1")}, [], ""),
        ({"worker": ("here:1", "here:2")}, [], ""),
        (
            {"worker": ("a:1", "X:1", "x:2"), "ps": ("y:1", "x:3")},
            ["cluster.worker[1]", "cluster.ps[0]"],
            "cluster.worker[1] has a host name that does not resolve on this machine. "
            "Received: 'x' (Name or service not known). Correct it, ",
        ),
        (
            {"worker": ("a:1", "here:1")},
            ["cluster.worker[1]"],
            "cluster.worker[1] has a host name that resolves to this machine itself. "
            "Received: 'here' (127.0.1.1, ::1). Correct it, or /etc/hosts, or give the",
        ),
    ],
)
def test_host_names_are_looked_up(jobs, places, message):
    found = [*lookup_warnings(jobs, known)]

    assert [finding.place for finding in found] == places
    assert "".join(finding.message for finding in found).startswith(message)


def test_the_machine_looks_up_names():
    assert look_up("127.0.0.1") == {"127.0.0.1"}
    for host in ("a" * 300, "a..b"):
        with pytest.raises(OSError, match="."):
            look_up(host)
