"""The first difference between records that are worked out by hand."""

import os
from pathlib import Path

import pytest

from tfdist.cluster.launcher import Launcher
from tfdist.recorder.reader import Record, compare, read_folder
from tfdist.recorder.ring import RING_BYTES, Entry, Flight, State, create_file

# Noon of the first day.
NOON = 43_200.0
OPEN = 0.0


def reduce(step, bucket, begin, end):
    """Return the all-reduce of a bucket; times are in seconds after noon."""
    name = f"all_reduce 'gradients/b{bucket}' (sum, float32) of 9 elements"
    ends = NOON + end if end else OPEN
    return Entry(1, name, 36, "train_step", step, NOON + begin, 0.0, ends)


def record(rank, entries, *, end=None, kind="", since=0.0, step=0):
    """Return the record of a rank."""
    state = State({"train_step": step}, kind, since)
    path = Path(f"rank.{rank}.flight")
    return Record(path, rank, 2, "host", "a", NOON, entries, state, end)


def both(first, second, **options):
    """Compare two ranks."""
    return compare({0: record(0, first), 1: record(1, second, **options)})


BEFORE = [reduce(1, 0, 0, 1), reduce(1, 1, 1, 2)]


def test_a_rank_has_not_begun_what_the_other_waits_in():
    blackbox = both([*BEFORE, reduce(2, 0, 3, None)], BEFORE)

    assert blackbox.sentence == (
        "rank 1 has not begun bucket 0 of step 2, in which rank 0 waits since "
        "12:00:03.000 UTC; up to then all ranks made the same 2 collectives. Rank 1 "
        "was last in bucket 1 of step 1, until 12:00:02.000 UTC."
    )


@pytest.mark.parametrize(
    ("more", "options", "doing"),
    [
        (
            [reduce(2, 1, 4, None)],
            {},
            "is in bucket 1 of step 2 since 12:00:04.000 UTC.",
        ),
        (
            [],
            {"kind": "train_step", "since": NOON + 2.5, "step": 1},
            "Rank 1 waits for the input of step 2 since 12:00:02.500 UTC.",
        ),
        ([], {"end": ""}, "Rank 1 ended by itself."),
        ([], {"end": "ValueError: a"}, "Rank 1 ended with ValueError: a."),
        (
            [],
            {"end": "ValueError: Do it again."},
            "ended with ValueError: Do it again.",
        ),
    ],
)
def test_what_the_late_rank_does(more, options, doing):
    blackbox = both([*BEFORE, reduce(2, 0, 3, None)], [*BEFORE, *more], **options)

    assert "rank 1 has not begun bucket 0 of step 2" in blackbox.sentence
    assert blackbox.sentence.endswith(doing)
    assert "collectives. Rank 1 " in blackbox.sentence
    assert ".." not in blackbox.sentence


def test_all_ranks_are_in_one_collective():
    last = reduce(2, 0, 3, None)

    assert both([*BEFORE, last], [*BEFORE, last]).sentence == (
        "All ranks have begun bucket 0 of step 2, and rank 0 and rank 1 have not ended "
        "it, since 12:00:03.000 UTC: look at the network; up to then all ranks made "
        "the same 3 collectives."
    )


def test_no_difference():
    blackbox = compare({0: record(0, BEFORE, end=""), 1: record(1, BEFORE, end="")})

    assert blackbox.sentence == (
        "All ranks made the same 2 collectives. Rank 0 ended by itself. Rank 1 ended "
        "by itself."
    )


def test_what_one_ring_has_lost_is_no_difference():
    """Rank 0 still has step 1; rank 1 has overwritten it."""
    assert both(BEFORE, BEFORE[1:]).sentence.startswith("All ranks made the same 1 ")


def test_who_is_late_by_clocks_that_differ():
    """Rank 1's clock is 100 s ahead; it begins 0.5 s and 0.25 s after rank 0."""
    late = [reduce(1, 0, 100.5, 101), reduce(1, 1, 101.25, 102)]

    blackbox = both(BEFORE, late)

    assert blackbox.ahead_seconds == {0: 0, 1: 100}
    assert blackbox.late.rank == 1
    assert (blackbox.late.times, blackbox.late.of) == (2, 2)
    assert blackbox.late.seconds == pytest.approx(0.375)


def test_collectives_of_loops_without_steps_are_not_compared():
    """A graph outside of steps does not know how often it has run."""
    lone = Entry(1, "a", 0, "", 0, NOON + 3, 0.0, OPEN)

    assert both([*BEFORE, lone], BEFORE).sentence.startswith("All ranks made the same")


@pytest.fixture
def write(tmp_path):
    """Return what writes the file of a rank with one exchange."""

    def write(rank, run="a", size=2):
        env = {"TFDIST_FLIGHT_DIR": str(tmp_path), "TFDIST_RUN_ID": run}
        descriptor = create_file(rank, size, Launcher(env))
        memory = memoryview(bytearray(RING_BYTES))
        flight = Flight(memory, descriptor)
        with flight.entry("the exchange of a"):
            pass
        with (tmp_path / f"rank.{rank}.flight").open("r+b") as file:
            file.write(memory)

    return write


def test_notes_name_what_is_missing_damaged_or_foreign(tmp_path, write):
    write(2, run="old", size=4)
    write(0)
    (tmp_path / "rank.3.flight").write_text("a")

    blackbox = read_folder(tmp_path)

    assert blackbox.sentence.startswith("Only rank 0 has a record")
    assert [
        note.removeprefix(f"{tmp_path}/").split(". ")[0] for note in blackbox.notes
    ] == [
        "rank.3.flight is not a whole flight record of this version of tfdist",
        "rank.2.flight is of another run, and left out.",
        "Without a record: rank 1 of 2",
    ]


def test_a_record_of_a_hostile_size_costs_no_time(tmp_path, write):
    write(0, size=10**9)
    os.mkfifo(tmp_path / "rank.1.flight")

    [note] = read_folder(tmp_path).notes

    assert note.startswith(
        "Without a record: rank 1, 2, 3, 4, 5, 6, 7, 8, ... of 1000000000. Copy"
    )


def test_a_folder_with_a_broken_record_alone(tmp_path):
    (tmp_path / "rank.0.flight").write_bytes(b"")

    with pytest.raises(
        FileNotFoundError, match=r"host of its rank\. Start the job with `[^`]*`\.$"
    ):
        read_folder(tmp_path)


def test_a_folder_without_records(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"must hold flight records.*output-dir"
    ):
        read_folder(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"DIR must be a folder\. Received: .*b"
    ):
        read_folder(tmp_path / "b")
