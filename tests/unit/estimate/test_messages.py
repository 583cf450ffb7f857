"""The collectives of a step, from a record made by hand."""

from tfdist.estimate.messages import UPDATE, messages_of, within_epochs
from tfdist.estimate.profile import Message
from tfdist.rendezvous.flight import Entry

# Steps of 10 s.
UPDATES = [10.0, 20.0, 30.0]


def entry(name, begin, size_bytes=0):
    """Return an entry of the record."""
    return Entry(1, name, size_bytes, "train_step", 1, begin, 0.0, begin)


def test_the_messages_of_a_step():
    entries = [
        *(entry(UPDATE, time) for time in UPDATES),
        *(entry("input", time + 1) for time in UPDATES),
        *(entry("all_reduce 'gradients/b0'", time, 400) for time in (17.0, 27.0)),
        # It seems to begin after the update that it belongs to.
        *(entry("all_reduce 'gradients/b1'", time, 80) for time in (10.1, 20.1)),
        *(entry("all_gather 'rows'", time, 8) for time in (12.5, 22.5)),
        # Once only, as at the end of an epoch; and before the first step that counts.
        entry("broadcast 'seed'", 9.0, 4),
    ]
    assert messages_of(entries, UPDATES, micro_steps=1) == [
        Message("all_gather", 8, 0.25, is_gradient=False),
        Message("all_reduce", 400, 0.7),
        Message("all_reduce", 80, 1.0),
    ]


def test_what_is_sent_once_for_several_steps_counts():
    updates = [10.0 * n for n in range(1, 10)]
    entries = [entry("all_reduce 'gradients/b0'", t, 400) for t in (49.0, 89.0)]
    (found,) = messages_of(entries, updates, micro_steps=4)
    assert (found.size_bytes, found.begin) == (400, 0.9)
    assert messages_of(entries, updates, micro_steps=1) == []


def test_without_steps_there_are_none():
    assert messages_of([entry("all_reduce 'gradients/b0'", 1.0)], [2.0], 1) == []


def test_the_end_of_an_epoch_is_no_slow_step():
    updates = [0.0, 1.0, 2.0, 5.0, 6.0]
    assert within_epochs(updates, [2.5, 9.0]) == [1.0, 1.0, 1.0]
    # Each step ends an epoch: then nothing else is known.
    assert within_epochs(updates[1:4], [1.5, 2.5]) == [1.0, 3.0]
