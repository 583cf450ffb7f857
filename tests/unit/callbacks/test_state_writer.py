"""States are written beside the training, one at a time."""

import threading

import pytest

from tfdist.callbacks.state_writer import StateWriter

MESSAGE = (
    r"^BackupAndRestore could not write the state of the training\. Received: no space "
    r"left\. The state before it is kept\. Make room, or choose another backup_dir, "
    r"and start again\.$"
)


class Files:
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
def files():
    return Files()


@pytest.fixture
def writer(files):
    writer = StateWriter(files)
    yield writer
    files.may_write.set()
    writer.close()


def test_states_are_packed_and_written_beside_the_training(files, writer):
    packed_by = set()

    def pack():
        packed_by.add(threading.get_ident())
        return b"state"

    writer.write(pack)
    writer.wait()

    assert files.written == [b"state"]
    assert packed_by == files.threads
    assert threading.get_ident() not in packed_by


def test_the_training_does_not_wait_for_the_disk(files, writer):
    files.may_write.clear()
    writer.write(lambda: b"first")

    assert files.written == []


def test_the_next_state_waits_for_the_one_before(files, writer):
    files.may_write.clear()
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
    files.may_write.set()
    thread.join(30)
    writer.wait()

    assert is_waiting
    assert files.written == [b"first", b"second"]


def test_an_error_of_the_disk_is_raised_at_the_next_write(files, writer):
    files.error = OSError("no space left")
    writer.write(lambda: b"first")
    with pytest.raises(OSError, match=MESSAGE) as caught:
        writer.write(lambda: b"second")

    assert caught.value.__cause__ is files.error
    assert files.written == []


def test_an_error_of_the_last_write_is_raised_at_the_end_once(files, writer):
    files.error = OSError("no space left")
    writer.write(lambda: b"last")
    with pytest.raises(OSError, match=MESSAGE):
        writer.wait()
    writer.wait()


def test_after_an_error_writing_goes_on(files, writer):
    files.error = OSError("no space left")
    writer.write(lambda: b"first")
    with pytest.raises(OSError, match=MESSAGE):
        writer.wait()
    files.error = None
    writer.write(lambda: b"second")
    writer.wait()

    assert files.written == [b"second"]


def test_our_own_mistakes_are_not_called_the_disk_s(writer):
    def pack():
        raise TypeError("not JSON")

    writer.write(pack)
    with pytest.raises(TypeError, match=r"^not JSON$"):
        writer.wait()


def test_closing_waits_for_the_last_state(files):
    writer = StateWriter(files)
    before = threading.active_count()
    writer.write(lambda: b"last")
    writer.close()

    assert files.written == [b"last"]
    assert threading.active_count() == before


def test_without_a_state_there_is_nothing_to_wait_for(files, writer):
    writer.wait()
    writer.close()

    assert files.written == []
