"""What a process remembers."""

import numpy as np

from tfdist.verify import recorder as recorder_module
from tfdist.verify.recorder import Recorder
from tfdist.verify.recording import Entry

X = np.arange(4.0).reshape(2, 2)


def take_steps(recorder, count):
    for number in range(count):
        weight = np.array([number, 1.0])
        state = {
            "w": (Entry("weights", "float64"), weight),
            "m": (Entry("metrics", "float64", "sum"), np.array(number)),
        }
        recorder.end_step([X], 1, 0.5 * number, state)
        weight += 100.0  # The buffer belongs to somebody else.


def test_every_step_is_kept():
    recorder = Recorder(0, steps=3)
    take_steps(recorder, 3)

    recording = recorder.recording
    assert recorder.has_enough
    assert [recording.states[step]["w"][0] for step in (1, 2, 3)] == [0, 1, 2]
    assert [batch.rows for batch in recording.batches] == [1, 1, 1]
    assert recording.losses == [0.0, 0.5, 1.0]


def test_of_large_states_the_first_and_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(recorder_module, "_STATES_BYTES", 40)
    recorder = Recorder(0, steps=4)
    take_steps(recorder, 3)

    assert not recorder.has_enough
    assert [*recorder.recording.states] == [1, 3]


def test_other_ranks_keep_digests_but_for_metrics():
    recorder = Recorder(1, steps=2)
    take_steps(recorder, 2)

    state = recorder.recording.states[2]
    assert state["w"].dtype == np.uint8
    assert state["m"] == 1


def test_the_start_is_taken_once():
    recorder = Recorder(0, steps=2)
    recorder.start({"w": 1}, ["1", "2", "3"])
    recorder.start({}, ["4", "5", "6"])

    assert recorder.recording.initial == {"w": 1}
    assert recorder.recording.seeds == ["1", "2", "3"]


def test_gradients_are_those_of_the_first_step():
    recorder = Recorder(0, steps=2)
    for value in (1, 2):
        recorder.take("raw_gradients", {"w": value})
        recorder.take("applied_gradients", {"w": -value})

    assert recorder.recording.raw_gradients == {"w": 1}
    assert recorder.recording.applied_gradients == {"w": -1}
