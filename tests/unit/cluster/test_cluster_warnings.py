import pytest

from tfdist.cluster.cluster_warnings import cluster_warnings

WORKERS = ("a:1", "b:1")


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
            "cluster has parameter servers, but no chief to tell the workers what to "
            "do. Received: only worker, ps. Add the address of the chief",
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
