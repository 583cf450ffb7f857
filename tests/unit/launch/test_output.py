"""Where printed bytes go."""

import os
import threading

import pytest

from tfdist.cluster import Task
from tfdist.launch import output as output_module
from tfdist.launch.output import Output, OutputPump
from tfdist.launch.spec import ProcessSpec

SECONDS = 30


class Console:
    """Two pipes in place of this process's stdout and stderr."""

    def __init__(self, monkeypatch):
        self.ends = [os.pipe(), os.pipe()]
        monkeypatch.setattr(output_module, "_STDOUT", self.ends[0][1])
        monkeypatch.setattr(output_module, "_STDERR", self.ends[1][1])

    def read(self):
        """Return what was written to stdout and to stderr, and close both."""
        texts = []
        for read_end, write_end in self.ends:
            os.close(write_end)
            with open(read_end, "rb") as file:
                texts.append(file.read())
        return tuple(texts)


@pytest.fixture
def console(monkeypatch):
    return Console(monkeypatch)


def spec_of(rank, task=None):
    return ProcessSpec(rank, ("/bin/true",), {}, task=task)


def pump_of(output, *writers, tasks=()):
    """Run a pump to its end; each writer gets the two descriptors of one rank."""
    tasks = tasks or [None] * len(writers)
    ended, failed = threading.Event(), threading.Event()
    pump = OutputPump(output, on_end=ended.set, on_error=failed.set)
    for rank, write in enumerate(writers):
        pump.open(spec_of(rank, tasks[rank]))
        write(*pump.ends_of(rank))
    pump.start()
    for rank in range(len(writers)):
        pump.end(rank)
    assert ended.wait(SECONDS)
    pump.close()
    assert failed.is_set() == (pump.error is not None)
    return pump


def rank_0(stdout, stderr):
    os.write(stdout, b"one\ntwo")
    os.write(stderr, b"oh\xff\n")


def rank_1(stdout, stderr):
    os.write(stdout, b"10 %\r20 %\r\n")


def test_lines_are_tagged_and_the_streams_stay_apart(console):
    pump_of(Output(), rank_0, rank_1)

    out, err = console.read()
    assert sorted(out.splitlines()) == [
        b"[0] one",
        b"[0] two",
        b"[1] 20 %",
    ]
    assert err == b"[0] oh\xff\n"


def test_without_tags_every_byte_is_as_it_came(console):
    pump_of(Output(tag=False), rank_1)

    assert console.read() == (b"10 %\r20 %\r\n", b"")


def test_without_console_nothing_is_shown(console):
    pump_of(Output(console=False), rank_0)

    assert console.read() == (b"", b"")


def test_each_rank_has_a_file_with_both_streams(console, tmp_path):
    (tmp_path / "rank.0.log").write_text("from the last run, and longer than this one")

    pump_of(Output(directory=tmp_path), rank_0, rank_1)

    log = (tmp_path / "rank.0.log").read_bytes()
    assert sorted(log.splitlines()) == [b"oh\xff", b"one", b"two"]
    assert (tmp_path / "rank.1.log").read_bytes() == b"10 %\r20 %\r\n"
    console.read()


def test_a_file_is_kept_on_request(console, tmp_path):
    (tmp_path / "rank.0.log").write_text("from the start before\n")

    pump_of(Output(directory=tmp_path, append=True), rank_1)

    log = (tmp_path / "rank.0.log").read_bytes()
    assert log == b"from the start before\n10 %\r20 %\r\n"
    console.read()


def test_the_tail_holds_the_last_lines_with_text():
    def write(stdout, stderr):
        os.write(stdout, b"".join(b"line %d\n\n" % number for number in range(20)))

    pump = pump_of(Output(console=False), write, rank_0)

    assert pump.tail(0) == tuple(f"line {number}" for number in range(10, 20))
    assert set(pump.tail(1)) == {"one", "two", "oh\ufffd"}


def test_the_tail_holds_one_state_of_a_progress_bar():
    def write(stdout, stderr):
        os.write(stdout, b"start\n\r1 of 3\b\b\r2 of 3\b\b\r3 of 3\b\b\r")

    assert pump_of(Output(console=False), write).tail(0) == ("start", "3 of 3")


def test_the_time_of_the_last_traceback_is_known():
    def write(stdout, stderr):
        os.write(stderr, b"Traceback (most recent call last):\n  File\nE: x\n")

    def print_only(stdout, stderr):
        os.write(stdout, b"Traceback (most recent call last):\n")

    pump = pump_of(Output(console=False), write, print_only)

    assert pump.traceback_seconds(0) < float("inf")
    assert pump.traceback_seconds(1) == float("inf")


def test_a_console_that_nobody_reads_is_an_error(console):
    os.close(console.ends[0][0])

    pump = pump_of(Output(), rank_0)

    assert isinstance(pump.error, BrokenPipeError)
    assert "two" in pump.tail(0), "the ranks are still read, or they would stand still"
    console.ends[0] = os.pipe()
    console.read()


def test_a_full_disk_is_an_error(tmp_path):
    (tmp_path / "rank.0.log").symlink_to("/dev/full")

    pump = pump_of(Output(console=False, directory=tmp_path), rank_0)

    assert "No space left" in str(pump.error)


def test_pipes_are_closed_when_the_pump_never_starts():
    pump = OutputPump(Output(), on_end=lambda: None, on_error=lambda: None)
    before = set(os.listdir("/proc/self/fd"))
    pump.open(spec_of(0))

    pump.close()

    assert set(os.listdir("/proc/self/fd")) <= before


TASKS = (Task("chief", 0), Task("worker", 1))


def test_tasks_have_their_names_for_tags_and_files(console, tmp_path):
    pump_of(Output(directory=tmp_path), rank_0, rank_1, tasks=TASKS)

    out, err = console.read()
    assert sorted(out.splitlines()) == [
        b"[chief] one",
        b"[chief] two",
        b"[worker 1] 20 %",
    ]
    assert err == b"[chief] oh\xff\n"
    assert sorted(os.listdir(tmp_path)) == ["chief.log", "worker.1.log"]


def test_who_takes_the_place_of_a_rank_writes_to_the_same_end():
    ended = threading.Event()
    pump = OutputPump(Output(console=False), on_end=ended.set, on_error=lambda: None)
    pump.open(spec_of(0))
    pump.open(spec_of(1))
    pump.start()
    os.write(pump.ends_of(0)[0], b"first\n")
    pump.end(1)
    os.write(pump.ends_of(0)[0], b"second\n")
    assert not ended.is_set()
    pump.end(0)

    assert ended.wait(SECONDS)
    assert pump.tail(0) == ("first", "second")
    pump.close()


def test_the_launcher_has_lines_of_its_own(console):
    def write(stdout, stderr):
        os.write(stderr, b"text\n")

    ended = threading.Event()
    pump = OutputPump(Output(), on_end=ended.set, on_error=lambda: None)
    pump.open(spec_of(0))
    pump.start()
    pump.announce("news")
    write(*pump.ends_of(0))
    pump.end(0)

    assert ended.wait(SECONDS)
    pump.close()
    assert sorted(console.read()[1].splitlines()) == [b"[0] text", b"news"]
    assert pump.tail(0) == ("text",)
