"""The trace of records that are worked out by hand, with clocks that differ."""

from pathlib import Path

import pytest

from tfdist.recorder.reader import Record, compare
from tfdist.recorder.ring import INPUT, Entry, State
from tfdist.recorder.trace import trace_of

NOON = 43_200.0


def entry(name, step, begin, end, ahead=0.0):
    """Return an entry of a training step; without an end it is open."""
    times = NOON + ahead + begin, 0.0, NOON + ahead + end if end else 0.0
    return Entry(1, name, 36, "train_step", step, *times)


def slices_of(*by_rank):
    """Return the slices of ranks: rank, row, name, begin and end in seconds."""
    state = State({"train_step": 1}, "", 0.0)
    records = {
        rank: Record(
            Path("a"), rank, len(by_rank), "<b>", "a", NOON, entries, state, None
        )
        for rank, entries in enumerate(by_rank)
    }
    trace = trace_of(compare(records))
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    return [
        (
            event["pid"],
            rows[event["pid"], event["tid"]],
            event["name"],
            pytest.approx(event["ts"] / 1e6, abs=1e-5),
            pytest.approx((event["ts"] + event["dur"]) / 1e6, abs=1e-5),
        )
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    ]


@pytest.mark.parametrize("ahead", [0.0, 1000.0, -1000.0])
def test_a_late_rank_and_who_waits_for_it_on_one_clock(ahead):
    """Rank 1 reads for 3 s where rank 0 reads for 1 s; both end together, at 4."""
    on_time = [entry(INPUT, 1, 0, 1), entry("a", 1, 1, 4)]
    late = [entry(INPUT, 1, 0, 3, ahead), entry("a", 1, 3, 4, ahead)]

    assert slices_of(on_time, late) == [
        (0, "input", "input of step 1", 0, 1),
        (0, "collectives", "a of step 1", 1, 4),
        (0, "collectives", "waits for rank 1", 1, 3),
        (1, "input", "input of step 1", 0, 3),
        (1, "collectives", "a of step 1", 3, 4),
        (1, "late", "late for a of step 1", 1, 3),
    ]


def test_a_rank_that_has_not_come_is_waited_for_until_the_last_time_of_all():
    joint = [entry("a", 1, 0, 1)]

    found = slices_of([*joint, entry("a", 2, 2, None)], [*joint, entry(INPUT, 2, 1, 5)])

    assert found[1:3] == [
        (0, "collectives", "a of step 2 (not ended)", 2, 5),
        (0, "collectives", "waits for rank 1", 2, 5),
    ]
    assert found[-1] == (1, "late", "late for a of step 2", 2, 5)


def test_collectives_in_flight_at_once_have_rows_of_their_own():
    """A row would otherwise hold two slices of which neither contains the other."""
    both = [entry("a", 1, 0, 2), entry("b", 1, 1, 3), entry("a", 2, 2, 4)]

    # Perfetto shows rows by their numbers.
    state = State({}, "", 0.0)
    record = Record(Path("a"), 0, 1, "a", "a", NOON, both, state, "")
    events = trace_of(compare({0: record}))["traceEvents"]

    assert [each["tid"] for each in events if each["ph"] == "X"] == [3, 4, 3]


def test_what_one_ring_has_lost_is_not_waited_for():
    lost = [entry("a", 1, 0, 1), entry("a", 2, 2, 3)]

    assert not any("waits" in name for _, _, name, *_ in slices_of(lost, lost[1:]))


def test_a_job_that_has_recorded_nothing():
    assert slices_of([], []) == []
