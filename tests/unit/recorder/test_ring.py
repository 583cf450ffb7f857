"""Flight records of single ranks: what Python writes, and what is read."""

import itertools
import json
import sys
import threading

import pytest

from tfdist.cluster.launcher import Launcher
from tfdist.recorder.reader import read_record
from tfdist.recorder.ring import (
    GRAPH_ROWS,
    RING_BYTES,
    ROW,
    ROWS,
    Entry,
    Flight,
    create_file,
)


@pytest.fixture
def memory():
    """The memory of a record without a file."""
    return memoryview(bytearray(RING_BYTES))


@pytest.fixture
def file(tmp_path):
    """A new file of rank 1, and its descriptor."""
    env = {"TFDIST_FLIGHT_DIR": str(tmp_path / "new"), "TFDIST_RUN_ID": "a"}
    return tmp_path / "new" / "rank.1.flight", create_file(1, 2, Launcher(env))


def entry(name, kind="train_step", step=7):
    """Return an entry that has a name."""
    return Entry(1, name, 0, kind, step, 1.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("all_reduce 'gradients/b1' (sum, float32) of 3 elements", "bucket 1"),
        ("all_reduce gradients/b0 Sum 1.0 1.0", "bucket 0"),
        ("all_reduce 'gradients_1/b2' (sum)", "bucket 2 (gradients_1)"),
        ("all_reduce 'rows of the batch' (sum)", "rows of the batch"),
        ("input", "input"),
    ],
)
def test_titles_are_short(name, title):
    assert entry(name).title == f"{title} of step 7"


def test_a_title_outside_of_a_step_has_none():
    assert entry("the exchange of decisions", "", 3).title == (
        "the exchange of decisions"
    )
    assert entry("'a'", "test_step").title == "a of test step 7"


def test_a_rank_waits_in_a_collective_of_a_step(memory):
    flight = Flight(memory)

    with flight.call("train_step"):
        flight.note_input("train_step")
        with flight.entry("all_reduce 'gradients/b1' (sum, float32)"):
            assert flight.waits_in() == "bucket 1 of step 1"
        assert flight.waits_in() == ""
    # The joint call has this name already.
    with flight.entry("the exchange of logs"):
        assert flight.waits_in() == ""


def test_an_entry_is_open_until_its_block_ends(memory):
    flight = Flight(memory)

    with flight.entry("the exchange of logs", 12) as agreed:
        [within] = flight.entries()
        agreed()
    [after] = flight.entries()

    assert within.is_open
    assert after[:5] == (1, "the exchange of logs", 12, "", 1)
    assert after.begin <= after.agreed <= after.end


def test_entries_know_their_step_or_their_call(memory):
    flight = Flight(memory)

    for _ in range(2):
        with flight.call("train_step"):
            flight.note_input("train_step")
            with flight.entry("a"):
                pass
        with flight.entry("the exchange of b"):
            pass

    assert [(e.name, e.kind, e.step) for e in flight.entries()] == [
        ("input", "train_step", 1),
        ("a", "train_step", 1),
        ("the exchange of b", "", 1),
        ("input", "train_step", 2),
        ("a", "train_step", 2),
        ("the exchange of b", "", 2),
    ]


def test_the_last_entries_stay(memory):
    flight = Flight(memory)
    for _ in range(ROWS):
        with flight.entry("a"):
            pass

    numbers = [each.number for each in flight.entries()]

    assert numbers == [*range(ROWS - (ROWS - 1 - GRAPH_ROWS) + 1, ROWS + 1)]


def test_entries_are_read_while_others_get_new_names(memory):
    flight, ended, before = Flight(memory), threading.Event(), sys.getswitchinterval()

    def record():
        for number in itertools.count():
            with flight.entry(f"collective {number % 1000}"):
                if ended.is_set():
                    return

    thread = threading.Thread(target=record)
    sys.setswitchinterval(1e-4)
    thread.start()
    try:
        for _ in range(20):
            flight.entries()
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


def test_names_without_end_share_one(memory):
    flight = Flight(memory)

    numbers = [flight.number_of(f"of {size} elements") for size in range(5000)]

    assert numbers[:4097] == [*range(4097)]
    assert {*numbers[4096:]} == {4096}
    assert flight.number_of("of 7 elements") == 7


def test_without_a_folder_there_is_no_file():
    assert create_file(0, 2, Launcher({})) is None


def test_a_folder_that_cannot_be_made_costs_the_record_only(tmp_path, caplog):
    (tmp_path / "file").touch()

    assert (
        create_file(1, 2, Launcher({"TFDIST_FLIGHT_DIR": str(tmp_path / "file")}))
        is None
    )
    assert "does not record the collectives of rank 1. Received: " in caplog.text


def test_a_file_tells_its_process(file):
    path, descriptor = file
    flight = Flight(memoryview(bytearray(RING_BYTES)), descriptor)
    flight.number_of("a")

    running = read_record(path)
    flight.close("ValueError: b")
    ended = read_record(path)

    assert (running.rank, running.size, running.run) == (1, 2, "a")
    assert running.end is None
    assert ended.end == "ValueError: b"


def test_a_new_process_has_a_new_file(file, tmp_path):
    """The old process may still write to its own."""
    path, old = file
    create_file(
        1, 2, Launcher({"TFDIST_FLIGHT_DIR": str(path.parent), "TFDIST_RUN_ID": "b"})
    )
    Flight(memoryview(bytearray(RING_BYTES)), old).close("")

    assert read_record(path).run == "b"
    assert read_record(path).end is None


def test_a_line_that_a_killed_process_began_does_not_count(file):
    path, _ = file
    with path.open("ab") as opened:
        opened.write(b'{"name": "a')

    assert read_record(path).rank == 1


EMPTY = b"\0" * RING_BYTES
ABOUT = {"format": "tfdist flight 1", "rank": 0, "size": 2, "host": "a"}
ABOUT |= {"run": "b", "started": 1.0}


def lines(*objects):
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


def row(*values):
    return ROW.pack(*values) + EMPTY[ROW.size :]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        EMPTY,
        EMPTY + b"[]\n",
        EMPTY + lines({"format": "tfdist flight 0"}),
        b"\xff" * RING_BYTES + b"{}\n",
        EMPTY + b"[" * 100_000 + b"\n",
        EMPTY + lines(ABOUT | {"rank": 2}),
        EMPTY + lines(ABOUT | {"started": 1e300}),
        row(1, 0, 0, 0, 1, 1e300, 0, 0) + lines(ABOUT, {"name": "a"}),
        row(1, 0, 0, 0, float("inf"), 1, 1, 1) + lines(ABOUT, {"name": "a"}),
        EMPTY + lines({"format": "\x1b]0;title\a" * 10_000}),
    ],
    ids=range(11),
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "rank.0.flight"
    path.write_bytes(content)

    message = r"is not a whole flight record.*Received: \d"
    with pytest.raises(ValueError, match=message) as error:
        read_record(path)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


def test_names_steer_no_terminal(tmp_path):
    path = tmp_path / "rank.0.flight"
    texts = {"name": "\x1b[2Jclear"}, {"end": "ValueError: a\r\x9bK"}
    path.write_bytes(row(1, 0, 0, 0, 1, 1, 1, 1) + lines(ABOUT, *texts))

    record = read_record(path)
    assert record.entries[0].name == r"\x1b[2Jclear"
    assert record.end == r"ValueError: a\r\x9bK"
