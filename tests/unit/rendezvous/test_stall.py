import pytest

from tfdist.rendezvous.hub import Failure, Report, find_failure

NAMES = {rank: f"rank {rank} (worker {rank}, h{rank}:1)" for rank in range(3)}


def find(reports, left=(), timeout_seconds=600.0):
    return find_failure(dict(enumerate(reports)), left, NAMES, timeout_seconds)


def inside(call, what="step", seconds=10.0, plan=()):
    return Report(call, what, True, seconds, plan)


def outside(call, what="step", seconds=10.0):
    return Report(call, what, False, seconds)


@pytest.mark.parametrize(
    "reports",
    [
        [Report(), Report()],
        [inside(3), inside(3)],
        [inside(3), outside(2)],
        [inside(3, seconds=599.0), inside(2, "other", seconds=599.0)],
        [inside(3, "a", seconds=2.9), inside(3, "b", seconds=10.0)],
        [inside(3, "a"), outside(3, "b")],
    ],
    ids=["start", "together", "late", "behind", "just now", "through"],
)
def test_who_may_still_come_is_waited_for(reports):
    assert find(reports) is None


def test_a_rank_that_left_before_a_call_is_named():
    failure = find([inside(5, "all_reduce 'a'"), outside(4)], left=[1])

    assert failure == Failure(
        "lost",
        "rank 1 (worker 1, h1:1) has ended its program while rank 0 (worker 0, h0:1) "
        "waits for it in all_reduce 'a'. Make the same calls on every rank, and look "
        "at the log of the one that has ended for the reason.",
    )


def test_a_rank_that_left_after_the_call_is_not_missed():
    assert find([inside(5), outside(5)], left=[1]) is None


def test_a_rank_that_left_is_not_taken_for_one_that_waits():
    assert find([outside(5), inside(6, seconds=900.0)], left=[1]) is None


def test_different_calls_of_the_same_number_are_named_with_their_ranks():
    failure = find([inside(7, "all_reduce 'a'"), outside(6), inside(7, "barrier")])

    assert failure is not None
    assert failure.kind == "disagree"
    assert (
        "rank 0 (worker 0, h0:1) is in all_reduce 'a', rank 2 (worker 2, h2:1) in "
        "barrier (joint call 7 on both). Make the same calls" in failure.text
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (("a", "b"), ("a", "c"), "number 1 is b on rank 0 .* and c on rank 1"),
        (("a",), ("a", "c"), "number 1 is missing on rank 0 .* and c on rank 1"),
        (("x", "c"), ("a",), "number 0 is x on rank 0 .* and a on rank 1"),
    ],
)
def test_different_graphs_are_named_at_their_first_difference(mine, theirs, words):
    failure = find(
        [inside(2, seconds=40, plan=mine), inside(2, seconds=31, plan=theirs)],
        timeout_seconds=30.0,
    )

    assert failure is not None
    assert failure.kind == "disagree"
    with pytest.raises(
        RuntimeError, match=f"different graphs in step: .*{words}.*Trace the same"
    ):
        raise RuntimeError(failure.text)


@pytest.mark.parametrize(
    "reports",
    [
        [inside(2, seconds=599, plan=p) for p in (("a",), ("b",))],
        [inside(2, seconds=599, plan=p) for p in (("a",), ("a", "b"))],
        [inside(2, seconds=599, plan=p) for p in (("a",), ())],
    ],
    ids=["other", "longer", "not told yet"],
)
def test_ranks_may_trace_at_different_times_while_nobody_waits_too_long(reports):
    assert find(reports, timeout_seconds=600.0) is None


@pytest.mark.parametrize(
    "reports",
    [
        [inside(2, seconds=40, plan=("a",)), inside(1, seconds=40, plan=("b",))],
        [inside(2, seconds=40, plan=("a",)), inside(2, seconds=40, plan=("a",))],
        [inside(2, seconds=40, plan=("a",)), outside(2, seconds=40)],
    ],
    ids=["other call", "equal", "through"],
)
def test_graphs_are_to_blame_where_they_differ_in_one_call(reports):
    failure = find(reports, timeout_seconds=30.0)

    assert failure is not None
    assert failure.kind == "stalled"


def test_ranks_are_named_in_order_whoever_came_first():
    reports = [inside(2, seconds=40, plan=p) for p in (("a",), ("b",))]
    late_zero = {1: reports[1], 0: reports[0]}

    failure = find_failure(late_zero, (), NAMES, 30.0)

    assert failure is not None
    assert "is a on rank 0 (worker 0, h0:1) and b on rank 1" in failure.text


def test_a_third_rank_with_another_graph_is_found():
    reports = [inside(2, seconds=40, plan=p) for p in (("a",), ("a",), ("b",))]

    failure = find(reports, timeout_seconds=30.0)

    assert failure is not None
    assert "rank 1 (worker 1, h1:1) and b on rank 2" in failure.text


def test_who_waits_too_long_is_told_who_is_behind():
    failure = find(
        [inside(9, "fit", 61.0), outside(8, "evaluate", 62.0), inside(9, "fit", 61.0)],
        timeout_seconds=60.0,
    )

    assert failure == Failure(
        "stalled",
        "rank 0 (worker 0, h0:1) has waited 61 s in fit. rank 1 (worker 1, h1:1) is in "
        "no joint call; its last was evaluate, for 62 s. Find out what holds them up; "
        "if it is work that takes so long, raise timeout_seconds of the strategy "
        "(now 60).",
    )


def test_a_rank_behind_may_itself_be_in_a_call():
    failure = find([inside(9, "b", 61.0), inside(8, "a", 5.0)], timeout_seconds=60.0)

    assert failure is not None
    assert "rank 1 (worker 1, h1:1) is in a, for 5 s" in failure.text


def test_when_nobody_is_behind_those_who_are_out_are_named():
    failure = find([inside(9, "b", 61.0), outside(9, "b", 60.0)], timeout_seconds=60.0)

    assert failure is not None
    assert "rank 1 (worker 1, h1:1) is in no joint call" in failure.text


def test_when_all_wait_that_is_said():
    failure = find([inside(9, "b", 61.0), inside(9, "b", 61.0)], timeout_seconds=60.0)

    assert failure is not None
    assert "All ranks are in it" in failure.text
