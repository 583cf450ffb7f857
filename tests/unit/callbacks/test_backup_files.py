"""Saved states are complete, or noticed not to be; the previous one stands in."""

import os
import threading

import numpy as np
import pytest

from tfdist.callbacks.backup.files import (
    Damaged,
    StateFiles,
    StateWriter,
    from_bytes,
    to_bytes,
)


def state(number):
    return to_bytes({"number": np.array(number)})


def number_in(content):
    return int(from_bytes(content)["number"])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    """The folder of a training; not made yet."""
    return tmp_path / "new" / "states"


@pytest.fixture
def files(folder):
    return StateFiles(folder, kept=2)


@pytest.fixture
def two(files):
    """Files of two states, 1 and 2."""
    files.write(state(1))
    files.write(state(2))
    return files


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_bits_of_what_is_no_number_are_kept():
    array = np.array([np.nan, -np.inf, -0.0, 5e-324])

    assert from_bytes(to_bytes({"a": array}))["a"].tobytes() == array.tobytes()


def test_names_and_their_order_are_kept():
    arrays = {"a/b:0": np.ones(2), "": np.zeros(()), "Größe\n1": np.arange(3)}
    read = from_bytes(to_bytes(arrays))

    assert [*read] == [*arrays]
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)


def test_every_byte_that_has_changed_is_noticed():
    content = state(7)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(Damaged, match=r"^its checksum does not match its content$"):
            from_bytes(bytes(changed))


def test_every_end_that_is_missing_is_noticed():
    content = state(7)
    for length in range(len(content)):
        with pytest.raises(Damaged):
            from_bytes(content[:length])


def test_without_a_folder_there_is_no_state(files, folder):
    files.tidy()

    assert files.newest() is None
    assert not folder.exists()


@pytest.mark.parametrize("kept", [1, 2])
def test_the_newest_are_kept_and_numbers_go_on(folder, kept):
    for number in range(1, 5):
        files = StateFiles(folder, kept)
        files.write(state(number))

        newest = range(max(1, number - kept + 1), number + 1)
        assert names(folder) == [f"state-{one:08d}.npys" for one in newest]
        assert number_in(files.newest()) == number


def test_a_state_is_on_disk_before_the_oldest_goes(two, folder, monkeypatch):
    seen = []
    original = os.fsync

    def fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        seen.append((path, names(folder)))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    two.write(state(3))

    old = ["state-00000001.npys", "state-00000002.npys"]
    beside = f".{os.getpid()}.state-00000003.npys"
    assert seen == [
        (str(folder / beside), [beside, *old]),
        (str(folder), [*old, "state-00000003.npys"]),
    ]


def test_a_damaged_state_gives_way_to_the_one_before(two, folder, capsys):
    newest = folder / "state-00000002.npys"
    damage(newest)

    assert number_in(two.newest()) == 1
    assert capsys.readouterr().err == (
        f"tfdist: {newest} is damaged: its checksum does not match its content. "
        "state-00000001.npys, the state before it, is used.\n"
    )
    assert names(folder) == ["state-00000001.npys"]


def test_a_damaged_state_that_is_not_the_newest_is_not_looked_at(two, folder, capsys):
    damage(folder / "state-00000001.npys")

    assert number_in(two.newest()) == 2
    assert capsys.readouterr().err == ""


def test_if_all_are_damaged_the_training_does_not_begin_anew(two, folder):
    for path in folder.iterdir():
        damage(path)
    with pytest.raises(OSError, match=r"^backup_dir has no state") as caught:
        two.newest()

    assert str(caught.value) == (
        f"backup_dir has no state that could be read. Received: {folder} with "
        "state-00000001.npys, state-00000002.npys, whose checksums do not match. Check "
        "the disk, and remove the folder to train from the beginning."
    )
    assert len(names(folder)) == 2


def test_a_write_that_fails_leaves_what_there_is(two, folder, monkeypatch):
    def fail(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        two.write(state(3))

    assert names(folder) == ["state-00000001.npys", "state-00000002.npys"]
    assert number_in(two.newest()) == 2


STRAYS = [".1.state-00000003.npys", ".99999.state-00000001.npys"]


OTHERS = [
    *("state-00000003.npys.bak", "state-3.npys", "state-x.npys", ".state", ".1.npys"),
    *(".1.state-00000003.npys.bak", "1.state-00000003.npys", "notes.txt"),
]


@pytest.fixture
def crowded(two, folder):
    """Two states among strays, and files of others."""
    for name in (*STRAYS, *OTHERS):
        (folder / name).write_text("half of something")
    return two


def test_what_killed_writers_have_left_is_removed(crowded, folder):
    crowded.tidy()

    states = ["state-00000001.npys", "state-00000002.npys"]
    assert names(folder) == sorted([*states, *OTHERS])


def test_files_of_others_are_no_states(crowded, folder):
    assert number_in(crowded.newest()) == 2
    crowded.write(state(3))

    assert "state-00000003.npys" in names(folder)
    assert {*OTHERS} <= {*names(folder)}


def test_clearing_leaves_what_others_have_there(crowded, folder):
    crowded.clear()

    assert names(folder) == sorted(OTHERS)


MESSAGE = (
    r"^BackupAndRestore could not write the state of the training\. Received: no space "
    r"left\. The state before it is kept\. Free some space, or choose another "
    r"backup_dir, and start again\.$"
)


class Slow:
    """Takes states as `StateFiles` does; when `may_write` is set."""

    def __init__(self):
        self.written = []
        self.threads = set()
        self.may_write = threading.Event()
        self.may_write.set()
        self.error = None

    def write(self, content):
        assert self.may_write.wait(30)
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        self.written.append(content)


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def writer(slow):
    writer = StateWriter(slow)
    yield writer
    slow.may_write.set()
    writer.close()


def test_states_are_packed_and_written_beside_the_training(slow, writer):
    packed_by = set()

    def pack():
        packed_by.add(threading.get_ident())
        return b"state"

    writer.write(pack)
    writer.wait()

    assert slow.written == [b"state"]
    assert packed_by == slow.threads
    assert threading.get_ident() not in packed_by


def test_the_next_state_waits_for_the_one_before(slow, writer):
    slow.may_write.clear()
    writer.write(lambda: b"first")
    began = threading.Event()

    def write():
        began.set()
        writer.write(lambda: b"second")

    thread = threading.Thread(target=write)
    thread.start()
    assert began.wait(30)
    thread.join(0.05)
    is_waiting = thread.is_alive()
    slow.may_write.set()
    thread.join(30)
    writer.wait()

    assert is_waiting
    assert slow.written == [b"first", b"second"]


def test_an_error_of_the_disk_is_raised_at_the_next_write(slow, writer):
    slow.error = OSError("no space left")
    writer.write(lambda: b"first")
    with pytest.raises(OSError, match=MESSAGE) as caught:
        writer.write(lambda: b"second")

    assert caught.value.__cause__ is slow.error
    assert slow.written == []


def test_an_error_of_the_last_write_is_raised_at_the_end_once(slow, writer):
    slow.error = OSError("no space left")
    writer.write(lambda: b"last")
    with pytest.raises(OSError, match=MESSAGE):
        writer.wait()
    writer.wait()


def test_closing_waits_for_the_last_state(slow):
    writer = StateWriter(slow)
    before = threading.active_count()
    writer.write(lambda: b"last")
    writer.close()

    assert slow.written == [b"last"]
    assert threading.active_count() == before
