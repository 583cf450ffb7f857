import socket

import pytest

from tfdist.cluster.address import look_up
from tfdist.cluster.validation import (
    EFFECTS,
    check_addresses,
    cluster_warnings,
    lookup_warnings,
    refuse_first,
    wrong_task,
)

WORKERS = ("a:1", "b:1")
JOBS = {"chief": ("c:1",), "worker": ("a:1", "b:1"), "ps": ("p:1",)}


@pytest.mark.parametrize(
    "jobs",
    [
        {},
        JOBS,
        {"worker": ("a:1", "a:2"), "evaluator": ("a:3", "a:4")},
        {"worker": ("localhost:1", "127.0.0.1:2", "[::1]:3")},
    ],
)
def test_possible_addresses_are_accepted(jobs):
    assert check_addresses(jobs) is None


@pytest.mark.parametrize(
    ("jobs", "place", "other"),
    [
        ({"worker": ("a:1", "b:1", "a:1")}, r"worker\[2\]", r"worker\[0\]"),
        ({"chief": ("a:1",), "worker": ("a:1",)}, r"worker\[0\]", r"chief\[0\]"),
        ({"worker": ("a:1",), "ps": ("A:01",)}, r"ps\[0\]", r"worker\[0\]"),
        ({"worker": ("[::1]:1", "[0::1]:1")}, r"worker\[1\]", r"worker\[0\]"),
    ],
)
def test_an_address_twice_is_refused(jobs, place, other):
    message = f"^cluster.{place} has the same address as cluster.{other}. Received: "
    with pytest.raises(ValueError, match=message):
        check_addresses(jobs)


@pytest.mark.parametrize(
    ("addresses", "place"),
    [
        (("localhost:1", "node2:1"), r"worker\[0\] is on localhost"),
        (("node1:1", "127.0.0.1:1"), r"worker\[1\] is on 127\.0\.0\.1"),
        (("node1:1", "[::1]:1"), r"worker\[1\] is on ::1"),
    ],
)
def test_localhost_beside_other_hosts_is_refused(addresses, place):
    message = (
        f"^cluster.{place}, .* Received: 1 of 2 addresses on localhost. Give every"
    )
    with pytest.raises(ValueError, match=message):
        check_addresses({"worker": addresses})


def test_a_malformed_address_is_refused_with_its_place():
    with pytest.raises(
        ValueError, match=r"^cluster\.ps\[1\] has no port. Received: 'b'"
    ):
        check_addresses({"worker": ("a:1",), "ps": ("a:2", "b")})


@pytest.mark.parametrize(
    ("task_type", "index", "jobs"),
    [
        ("worker", 0, {}),
        ("worker", 1, JOBS),
        ("chief", 0, JOBS),
        ("ps", 0, JOBS),
        ("evaluator", 0, JOBS),
        ("evaluator", 7, JOBS),
        ("evaluator", 1, {**JOBS, "evaluator": ("e:1", "e:2")}),
        ("chief", 0, {"chief": ("c:1",)}),
    ],
)
def test_a_task_of_the_cluster_is_accepted(task_type, index, jobs):
    assert refuse_first(wrong_task(task_type, index, jobs)) is None


@pytest.mark.parametrize(
    ("task_type", "index", "jobs", "received"),
    [
        ("chief", 0, {"worker": ("a:1",)}, "type='chief', the jobs worker. Add the"),
        ("worker", 0, {"chief": ("a:1",)}, "type='worker', the jobs chief. Add the"),
        ("ps", 0, {"worker": ("a:1",)}, "type='ps', the jobs worker. Add the"),
        ("worker", 1, {}, r"type='worker', the jobs \(none\). Add the"),
        ("chief", 0, {}, r"type='chief', the jobs \(none\). Add the"),
        ("evaluator", 0, {}, r"type='evaluator', the jobs \(none\). Add the"),
    ],
)
def test_a_task_that_is_nobodys_is_refused(task_type, index, jobs, received):
    message = (
        f"^task.type names a job that the cluster does not have. Received: {received}"
    )
    with pytest.raises(ValueError, match=message):
        refuse_first(wrong_task(task_type, index, jobs))


@pytest.mark.parametrize(
    ("task_type", "last"), [("chief", 0), ("worker", 1), ("ps", 0), ("evaluator", 1)]
)
def test_an_index_out_of_range_is_refused(task_type, last):
    jobs = {**JOBS, "evaluator": ("e:1", "e:2")}
    message = (
        f"^task.index must be from 0 to {last}, as cluster.{task_type} has no more "
        f"addresses. Received: index={last + 1}. Count from 0"
    )
    with pytest.raises(ValueError, match=message):
        refuse_first(wrong_task(task_type, last + 1, jobs))


@pytest.mark.parametrize("task_type", ["ps", "evaluator", "worker"])
def test_somebody_must_train(task_type):
    jobs = {"ps": ("p:1",), "evaluator": ("e:1",)}
    message = "^cluster has neither a chief nor a worker, .* Received: only ps, eval"
    with pytest.raises(ValueError, match=message):
        refuse_first(wrong_task(task_type, 0, jobs))


@pytest.mark.parametrize(
    "jobs",
    [
        {},
        {"worker": WORKERS},
        {"chief": ("c:1",), "worker": ("a:1",)},
        {"chief": ("c:1",), "worker": ("a:1",), "ps": ("p:1",)},
        {"worker": ("localhost:1", "127.0.0.1:2")},
        {"worker": ("a:32767", "b:61000")},
    ],
)
def test_nothing_is_doubtful(jobs):
    assert [*cluster_warnings(jobs)] == []


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
            {"chief": ("c:1",)},
            "cluster.chief",
            "trains alone",
            "cluster has a single process that trains. Received: 'c:1'. List the add",
        ),
        (
            {"worker": WORKERS, "ps": ("p:1",)},
            "cluster.ps",
            "hang",
            "cluster has parameter servers, but no chief to coordinate the "
            "workers. Received: only worker, ps. Add the address of the chief",
        ),
        (
            {"chief": ("c:1",), "ps": ("p:1",)},
            "cluster.ps",
            "refused",
            "cluster has parameter servers, but no worker. Received: only chief, ps. "
            "Add the addresses of the workers",
        ),
        (
            {"worker": WORKERS, "evaluator": ("e:1",)},
            "cluster.evaluator",
            "left out",
            "cluster lists an evaluator among the processes that train together. "
            "Received: e:1. Leave the job out of cluster",
        ),
        (
            {"worker": ("a:2222", "a:32768")},
            "cluster.worker[1]",
            "port taken",
            "cluster.worker[1] has a port from the range of outgoing connections, "
            "32768 to 60999. Received: 'a:32768'. Use ports below 32768",
        ),
        (
            {"worker": ("a:60999", "b:50000", "c:2222", "d:40000")},
            "cluster.worker[0]",
            "port taken",
            "cluster.worker[0] has a port from the range of outgoing connections, "
            "32768 to 60999. Received: 'a:60999' and 2 more. Use ports below",
        ),
    ],
)
def test_what_is_doubtful(jobs, place, effect, message):
    (finding,) = cluster_warnings(jobs)

    assert (finding.severity, finding.place) == ("warning", place)
    assert finding.effect == effect
    assert finding.message.startswith(message)


def test_several_evaluators_are_two_warnings():
    jobs = {"worker": WORKERS, "evaluator": ("e:1", "e:2")}
    several, listed = cluster_warnings(jobs)

    assert several.message == (
        "cluster has several evaluators. Received: 2 addresses. Keep one at most."
    )
    assert (several.effect, listed.effect) == ("refused", "left out")


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
        "cluster.worker[1] has a host name that does not resolve on this machine. "
        "Received: 'x' (Name or service not known). Correct it, or give"
    )


def test_a_name_that_means_this_machine_beside_others():
    (finding,) = lookup_warnings({"worker": ("a:1", "here:1")}, known)

    assert finding.message == (
        "cluster.worker[1] has a host name that resolves to this machine itself. "
        "Received: 'here', which is 127.0.1.1, ::1. Correct /etc/hosts, or give the "
        "IP address by which the others reach it."
    )


def test_malformed_addresses_are_left_to_others():
    assert [*lookup_warnings({"worker": ("a:1", "b", ":1")}, known)] == []


def test_the_machine_is_asked():
    assert look_up("127.0.0.1") == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["a" * 300, ".a", "a..b"])
def test_what_is_no_name_at_all_is_not_found(host):
    with pytest.raises(OSError, match="."):
        look_up(host)


def test_every_effect_is_a_sentence():
    assert all(why[0].isupper() and why.endswith(".") for why in EFFECTS.values())
