"""Bytes of the ranks, on the console and in log files."""

import contextlib
import io
import json
import os
import platform
import re
import threading
from datetime import datetime

import pytest

from tfdist.cluster import Task
from tfdist.launching import console
from tfdist.launching.console import STDOUT, Records
from tfdist.launching.job import ProcessSpec
from tfdist.launching.output import Output, OutputPump

SECONDS = 120


def spec_of(rank, task=None, **env):
    return ProcessSpec(rank, ("/bin/true",), env, task=task)


@contextlib.contextmanager
def running(output, *specs):
    """Run a pump, which is at its end when the block is."""
    ended, failed = threading.Event(), threading.Event()
    pump = OutputPump(output, on_end=ended.set, on_error=failed.set)
    for spec in specs:
        pump.open(spec)
    pump.start()
    yield pump
    for spec in specs:
        pump.end(spec.rank)
    assert ended.wait(SECONDS)
    pump.close()
    assert failed.is_set() == (pump.error is not None)


def pump_of(output, *writers, **env):
    """Run a pump to its end; each writer gets the two descriptors of one rank."""
    specs = [spec_of(rank, **env) for rank in range(len(writers))]
    with running(output, *specs) as pump:
        for rank, write in enumerate(writers):
            write(*pump.ends_of(rank))
    return pump


def rank_0(stdout, stderr):
    os.write(stdout, b"one\ntwo")
    os.write(stderr, b"oh\xff\n")


def rank_1(stdout, stderr):
    os.write(stdout, b"10 %\r20 %\r\n")


def test_each_line_is_an_object_on_stdout_and_in_the_file(capfd, tmp_path):
    def write(stdout, stderr):
        os.write(stdout, b"1 of 3\b\b\r2 of 3\b\b\r3 of 3\n\x1b[1mbold\x00\n\nend")
        os.write(stderr, ERROR % 0 + b"oh\xff \xe2\x80\xa8\n")

    output = Output(directory=tmp_path, is_json=True, attempt=2)
    pump_of(output, rank_1, write, TF_CPP_MIN_LOG_LEVEL="2")

    out, err = capfd.readouterr()
    assert err == ""
    objects = [json.loads(line) for line in out.splitlines()]
    assert all(datetime.fromisoformat(one.pop("time")).tzinfo for one in objects)
    place = {"host": platform.node(), "attempt": 2}
    assert objects.count({"rank": 0, **place, "stream": "stdout", "text": "20 %"}) == 1
    texts = {"stdout": [], "stderr": []}
    for one in objects:
        if one["rank"] == 1:
            texts[one["stream"]].append(one["text"])
    assert texts["stdout"] == ["3 of 3", "\x1b[1mbold\0", "", "end"]
    error = (ERROR % 0).decode().splitlines()
    assert texts["stderr"] == [*error[:3], error[4], "oh\ufffd \u2028"]
    log = (tmp_path / "rank.1.restart2.log").read_text().splitlines()
    logged = [one["text"] for one in map(json.loads, log) if one["stream"] == "stderr"]
    assert logged == [*error, "oh\ufffd \u2028"]


def test_one_state_of_a_progress_bar_in_ten_seconds_is_an_object(clock):
    records = Records(spec_of(2, Task("worker", 1)), 0)
    kept = []
    for clock.seconds in (109.0, 110.0, 111.0, 120.0):
        kept += records.select(STDOUT, [b"\b\r", b"%d\r" % clock.seconds, b"line\n"])
    [first, *_] = records.format(STDOUT, kept)

    assert kept == [b"line\n", b"110\r", b"line\n", b"line\n", b"120\r", b"line\n"]
    assert json.loads(first)["task"] == "worker 1"


@pytest.mark.parametrize("is_json", [False, True])
def test_the_launcher_has_lines_of_its_own(is_json, capfd):
    with running(Output(is_json=is_json), spec_of(0)) as pump:
        pump.announce("news")
        os.write(pump.ends_of(0)[1], b"text\n")

    out, err = capfd.readouterr()
    assert pump.tail(0) == ("text",)
    if is_json:
        found = [json.loads(line) for line in out.splitlines()]
        said = {(one["rank"], one["stream"], one["text"]) for one in found}
        assert said == {(None, "launcher", "news"), (0, "stderr", "text")}
    else:
        assert sorted(err.splitlines()) == ["[0] text", "news"]


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


def test_a_console_without_a_reader_is_an_error(capfd):
    read_end, write_end = os.pipe()
    os.close(read_end)
    saved = os.dup(1)
    os.dup2(write_end, 1)
    os.close(write_end)

    pump = pump_of(Output(), rank_0)

    os.dup2(saved, 1)
    os.close(saved)
    assert isinstance(pump.error, BrokenPipeError)
    assert "two" in pump.tail(0), "the ranks are still read, or they would stand still"


def test_who_takes_the_place_of_a_rank_writes_to_the_same_end():
    with running(Output(console=False), spec_of(0)) as pump:
        for line in (b"first\n", b"second\n"):
            os.write(pump.ends_of(0)[0], line)

    assert pump.tail(0) == ("first", "second")


def test_a_closed_stream_of_python_ends_no_thread():
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stdout(closed):
        pump = pump_of(Output(by_print=True), rank_1)

    assert str(pump.error) == "I/O operation on closed file."


ERROR = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 8, in <module>\n'
    b"RuntimeError: rank %d is late.\n"
    b"E0000 00:00:1795458077.292548   12386 base.cc:252] "
    b"BaseCollectiveExecutor::StartAbort late\n"
    b"  Start it again.\n"
)


def test_the_last_error_is_its_message_without_the_stack():
    def write(stdout, stderr):
        os.write(stderr, b"text\n" + ERROR % 0)

    def long(stdout, stderr):
        os.write(stderr, ERROR % 0 + b"".join(b"%d\n" % n for n in range(20)))

    pump = pump_of(Output(console=False), write, long, rank_0)

    message = "RuntimeError: rank 0 is late.", "  Start it again."
    assert pump.last_error(0) == message
    last = map(str, range(15, 20))
    assert pump.last_error(1) == (*message, "0", "1", "2", "...", *last)
    assert pump.last_error(2) == ()


def test_an_error_of_several_ranks_is_printed_once(capfd, monkeypatch):
    for name in ("_HOLD_SECONDS", "_LONGEST_HOLD_SECONDS"):
        monkeypatch.setattr(console, name, 300.0)

    def write(stdout, stderr):
        os.write(stderr, b"text\n" + ERROR % 1)

    pump_of(Output(), write, write, rank_0, write, TF_CPP_MIN_LOG_LEVEL="2")

    assert sorted(capfd.readouterr().err.splitlines()) == sorted(
        [
            "[0] text",
            "[1] text",
            "[3] text",
            "[2] oh\ufffd",
            "[0] Traceback (most recent call last):",
            '[0]   File "train.py", line 8, in <module>',
            "[0] RuntimeError: rank 1 is late.",
            "[0]   Start it again.",
            "tfdist run: [0] and [1] and [3] raised this error.",
        ]
    )


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("0", "EIW text"),
        ("1", "W text"),
        ("2", " text"),
        ("3", " text"),
        ("10", " text"),
    ],
)
def test_no_level_but_0_shows_what_tensorflow_should_silence(level, shown, capfd):
    place = "0000 00:00:1795457241.5 9 port.cc:153]"
    text = f"E{place} failed call to cuInit: 1\nI{place} 2\nW{place} 3\n text\n"

    def write(stdout, stderr):
        os.write(stderr, text.encode())

    pump_of(Output(), write, TF_CPP_MIN_LOG_LEVEL=level)

    lines = capfd.readouterr().err.splitlines()
    assert "".join(line[4:].partition(place)[0] for line in lines) == shown


def test_a_full_disk_does_not_end_the_job(capfd, tmp_path):
    (tmp_path / "rank.0.log").symlink_to("/dev/full")

    pump = pump_of(Output(directory=tmp_path), rank_0, rank_1)

    out, err = capfd.readouterr()
    assert pump.error is None
    assert sorted(out.splitlines()) == ["[0] one", "[0] two", "[1] 20 %"]
    assert (tmp_path / "rank.1.log").read_bytes() == b"10 %\r20 %\r\n"
    text = (
        f"tfdist run: cannot write {tmp_path}/rank.0.log: No space left on device. The "
        "job goes on; until there is space, the file lacks what is printed."
    )
    assert err.splitlines().count(text) == 1


def test_a_file_of_a_job_that_runs_is_refused_and_kept(tmp_path):
    output = Output(console=False, directory=tmp_path)
    text = (
        "Each job needs a folder of its own for its log files. Received: "
        f"{tmp_path}/rank.0.log, to which a job writes that still runs. Choose another "
        "folder."
    )
    with running(output, spec_of(0)) as first:
        os.write(first.ends_of(0)[0], b"first\n")
        second = OutputPump(output, on_end=lambda: None, on_error=lambda: None)
        with pytest.raises(ValueError, match=re.escape(text)):
            second.open(spec_of(0))
        second.close()

    assert (tmp_path / "rank.0.log").read_text() == "first\n"
    pump_of(output, rank_1)
