"""The collectives of a step, from a record made by hand."""

from tfdist.estimate.meter import UPDATE, messages_of, within_epochs
from tfdist.estimate.prediction import Message
from tfdist.recorder.ring import Entry

# Steps of 10 s.
UPDATES = [10.0, 20.0, 30.0]
SENT = {
    "b0": ("all_reduce", True),
    "b1": ("all_reduce", True),
    "rows": ("all_gather", False),
    "seed": ("broadcast", False),
}


def entry(name, begin, size_bytes=0):
    """Return an entry of the record."""
    return Entry(1, name, size_bytes, "train_step", 1, begin, 0.0, begin)


def test_the_messages_of_a_step():
    entries = [
        *(entry(UPDATE, time) for time in UPDATES),
        *(entry("input", time + 1) for time in UPDATES),
        *(entry("b0", time, 400) for time in (17.0, 27.0)),
        # It seems to begin after the update that it belongs to.
        *(entry("b1", time, 80) for time in (10.1, 20.1)),
        *(entry("rows", time, 8) for time in (12.0, 22.0)),
        # Before the first step that counts.
        entry("seed", 9.0, 4),
    ]
    assert messages_of(entries, UPDATES, SENT, micro_steps=1) == [
        Message("all_gather", 8, 0.2, is_gradient=False),
        Message("all_reduce", 400, 0.7),
        Message("all_reduce", 80, 1.0),
    ]


def test_what_is_sent_once_for_several_steps_counts():
    updates = [10.0 * n for n in range(1, 10)]
    entries = [entry("b0", t, 400) for t in (49.0, 89.0)]
    (found,) = messages_of(entries, updates, SENT, micro_steps=4)
    assert (found.size_bytes, found.begin) == (400, 0.9)
    # Less often, as at the end of an epoch, it does not.
    assert messages_of(entries, updates, SENT, micro_steps=1) == []


def test_without_steps_there_are_none():
    assert messages_of([entry("b0", 1.0)], [2.0], SENT, 1) == []


def test_the_end_of_an_epoch_is_no_slow_step():
    updates = [0.0, 1.0, 2.0, 5.0, 6.0]
    assert within_epochs(updates, [2.5, 9.0]) == [1.0, 1.0, 1.0]
    # Each step ends an epoch: then nothing else is known.
    assert within_epochs(updates[1:4], [1.5, 2.5]) == [1.0, 3.0]
