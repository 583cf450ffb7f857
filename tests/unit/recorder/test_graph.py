"""The recorder in graphs, whose operations write into a mapped file."""

import subprocess
import sys

import pytest
import tensorflow as tf

from tfdist.cluster.launcher import FLIGHT_VARIABLE
from tfdist.recorder.graph import Recorder
from tfdist.recorder.reader import read_record


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file of rank 0."""
    monkeypatch.setenv(FLIGHT_VARIABLE, str(tmp_path))
    return tmp_path / "rank.0.flight"


@pytest.fixture
def recorder(path):
    """A recorder with a file."""
    recorder = Recorder(0, 2)
    yield recorder
    recorder.close("")


def stepping(recorder, kind="train_step"):
    """Return a function that makes a step with two collectives."""

    def step(x):
        with recorder.step(kind, {"x": x}) as ended:
            for name in ("a", "b"):
                what = f"all_reduce '{name}'"
                x = recorder.traced(what, [x], lambda x=x: tf.identity(x) + 1.0)
            ended(x)
        return x

    return step


def entries_of(path):
    """Return the entries in a file, without those of Python."""
    return [each for each in read_record(path).entries if each.name != "input"]


def test_a_graph_writes_to_the_file(recorder, path):
    function = tf.function(stepping(recorder))

    for _ in range(3):
        with recorder.call("train_step"):
            total = function(tf.zeros([5]))

    assert [*total.numpy()] == [2.0] * 5
    entries = entries_of(path)
    assert [(e.title, e.size_bytes) for e in entries] == [
        (f"{name} of step {step}", 20) for step in (1, 2, 3) for name in ("a", "b")
    ]
    assert all(0 < e.begin <= e.end for e in entries)
    record = read_record(path)
    inputs = [e for e in record.entries if e.name == "input"]
    assert [e.step for e in inputs] == [1, 2, 3]
    assert all(0 < e.begin <= e.end for e in inputs)
    assert (record.state.steps["train_step"], record.state.kind) == (3, "")


def test_steps_of_a_loop_are_counted_by_kind(recorder, path):
    train, test = (stepping(recorder, kind) for kind in ("train_step", "test_step"))

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = train(x)
        return test(x)

    with recorder.call("train_step"):
        loop(tf.zeros([]))

    assert {e.title for e in entries_of(path)} == {
        *(f"{name} of step {step}" for step in (1, 2, 3) for name in ("a", "b")),
        "a of test step 1",
        "b of test step 1",
    }


def test_eager_steps_are_counted(recorder, path):
    with (
        recorder.call("train_step"),
        recorder.step("train_step", tf.zeros([])),
        recorder.entry("all_reduce 'eager'"),
    ):
        pass

    assert [e.title for e in entries_of(path)] == ["eager of step 1"]


def test_the_last_entries_of_a_graph_stay(recorder, path):
    function = tf.function(stepping(recorder))
    for _ in range(2100):
        function(tf.zeros([]))

    entries = entries_of(path)

    # A third of 4,096 rows is for the waits for input.
    assert 2700 < len(entries) < 2750
    assert entries[-1].step == 2100


def test_without_a_folder_the_record_is_in_memory(monkeypatch, tmp_path):
    monkeypatch.delenv(FLIGHT_VARIABLE, raising=False)
    recorder = Recorder(0, 2)
    function = tf.function(stepping(recorder))

    function(tf.zeros([]))

    assert [e.name for e in recorder.entries()][-2:] == [
        "all_reduce 'a'",
        "all_reduce 'b'",
    ]


def test_a_closed_record_is_not_written_any_more(recorder, path):
    function = tf.function(stepping(recorder))
    function(tf.zeros([]))
    recorder.close("")
    function(tf.zeros([]))

    assert len(entries_of(path)) == 2
    assert read_record(path).end == ""


KILLED = """
import os, signal, time
import tensorflow as tf
from tfdist.recorder.graph import Recorder

recorder = Recorder(0, 2)

def kill():
    while not any(e.end for e in recorder.entries() if e.name.endswith("'a'")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0

@tf.function
def function(x):
    with recorder.step("train_step", x):
        x = recorder.traced("all_reduce 'a'", [x], lambda: x + 1.0)
        with tf.control_dependencies([x]):
            stop = lambda: tf.numpy_function(kill, [], tf.float64)
            recorder.traced("all_reduce 'b'", [x], stop)
    return x

with recorder.call("train_step"):
    function(tf.zeros([]))
"""


def test_a_killed_process_has_told_in_what_it_was(forked, path):
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True)

    assert ended.returncode == -9, ended.stderr
    record = read_record(path)
    # Nothing makes the collective wait until its begin is noted.
    assert [e.title for e in record.entries if e.is_open] in (["b of step 1"], [])
    assert record.state.kind == "train_step"
    assert record.end is None


def test_on_a_gpu_a_step_of_a_loop_waits_from_the_end_of_the_last_collective(
    path, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
        recorder = Recorder(0, 2)
    train = stepping(recorder)

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = train(x)
        return x

    with recorder.call("train_step"):
        loop(tf.zeros([]))
    recorder.close("")

    inputs = [e for e in read_record(path).entries if e.name == "input"]
    ends = {e.step: e.end for e in entries_of(path) if e.name == "all_reduce 'b'"}
    assert [e.begin for e in inputs[1:]] == [ends[1], ends[2]]
