"""Files of saved states: whole or known to be damaged, and the previous one used."""

import fcntl
import multiprocessing
import os
import re
import signal
import socket

import numpy as np
import pytest

from tfdist.callbacks.backup.files import StateFiles, from_bytes, is_whole, to_bytes

SECONDS = 120


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


def test_every_changed_or_missing_byte_is_noticed():
    content = state(7)
    assert is_whole(content)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        assert not is_whole(bytes(changed))
        assert not is_whole(content[:place])


@pytest.mark.parametrize("kept", [1, 2])
def test_the_newest_are_kept_and_numbers_go_on(folder, kept):
    for number in range(1, 5):
        files = StateFiles(folder, kept)
        files.write(state(number))

        newest = range(max(1, number - kept + 1), number + 1)
        assert names(folder) == [f"state-{one:08d}.npys" for one in newest]
        assert number_in(files.newest()) == number


def test_a_state_is_on_disk_before_the_oldest_goes(two, folder, synced):
    two.write(state(3))

    old = ["state-00000001.npys", "state-00000002.npys"]
    beside = f".{os.getpid()}.state-00000003.npys"
    assert synced == [
        (folder / beside, [beside, *old]),
        (folder, [*old, "state-00000003.npys"]),
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


def test_a_write_that_fails_leaves_what_there_is(two, folder, fill_disk):
    fill_disk()
    with pytest.raises(OSError, match="no space left"):
        two.write(state(3))

    assert names(folder) == ["state-00000001.npys", "state-00000002.npys"]
    assert number_in(two.newest()) == 2


def test_strays_of_killed_writers_are_removed_and_other_files_are_kept(two, folder):
    strays = [".1.state-00000003.npys", ".99999.state-00000001.npys"]
    others = [
        *("state-00000003.npys.bak", "state-3.npys", "state-x.npys", ".1.npys"),
        *(".1.state-00000003.npys.bak", "1.state-00000003.npys", "notes.txt"),
    ]
    for name in (*strays, *others):
        (folder / name).write_text("half of something")
    two.tidy()

    states = ["state-00000001.npys", "state-00000002.npys"]
    assert names(folder) == sorted([*states, *others])
    assert number_in(two.newest()) == 2
    two.clear()
    assert names(folder) == sorted(others)


def test_a_lock_that_its_owner_has_removed_is_made_anew(files, folder, monkeypatch):
    """The owner leaves between the opening of the file and the lock."""
    lockf, locked = fcntl.lockf, []

    def lock(file, how):
        if not locked:
            os.unlink(folder / "lock")
        locked.append(file)
        lockf(file, how)

    monkeypatch.setattr(fcntl, "lockf", lock)
    files.lock()

    assert str(os.getpid()) in (folder / "lock").read_text()


def hold(files, locked):
    """Lock the folder, say so, and keep it until the process is killed."""
    files.lock()
    locked.send(True)
    # If the test is killed, too, this ends some time.
    signal.alarm(SECONDS)
    signal.pause()


def test_two_jobs_cannot_save_in_one_folder(files, folder):
    """A killed job leaves the file of its lock, and no lock."""
    fork = multiprocessing.get_context("fork")
    reader, locked = fork.Pipe(duplex=False)
    other = fork.Process(target=hold, args=(files, locked))
    other.start()
    try:
        assert reader.poll(SECONDS)
        assert reader.recv()
        owner = f"process {other.pid} on {socket.gethostname()}"
        message = (
            "Another job that runs saves its states in backup_dir. Received: "
            f"{folder}, in use by {owner}. End that job, or give each job a folder of "
            "its own."
        )
        with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
            files.lock()
    finally:
        other.kill()
        other.join()
    assert names(folder) == ["lock"]

    files.lock()
    files.write(state(1))
    files.unlock()

    assert names(folder) == ["state-00000001.npys"]
