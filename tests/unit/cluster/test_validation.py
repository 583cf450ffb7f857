import pytest

from tfdist.cluster.validation import check_addresses, check_task

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
    assert check_task(task_type, index, jobs) is None


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
        check_task(task_type, index, jobs)


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
        check_task(task_type, last + 1, jobs)


@pytest.mark.parametrize("task_type", ["ps", "evaluator", "worker"])
def test_somebody_must_train(task_type):
    jobs = {"ps": ("p:1",), "evaluator": ("e:1",)}
    message = "^cluster has nobody who trains, .* Received: only ps, evaluator. Add the"
    with pytest.raises(ValueError, match=message):
        check_task(task_type, 0, jobs)
