import weakref

import pytest

from tfdist.strategies.parameter_server import batches
from tfdist.strategies.parameter_server.sending import work_of


@pytest.fixture
def update(strategy, update_of):
    return update_of(strategy)


@pytest.fixture
def work(update, batch):
    return work_of(update, [batch(0, 2), batch(2, 6)], [[2, 2, 0], [4, 4, 1]], 7)


def test_work_leaves_each_step_in_a_slot_of_its_own(update, work):
    slots = work.prepare()()
    taken = [update.step.layout.read([v.handle for v in slot]) for slot in slots]

    assert [int(one.rows) for one in taken] == [2, 4]
    assert (work.tag.first, work.tag.steps, work.tag.update) == (7, 2, update)


def test_work_that_is_prepared_again_has_other_slots(work):
    first, again = work.prepare()(), work.prepare()()

    assert not {id(v) for slot in first for v in slot} & {
        id(v) for slot in again for v in slot
    }


def test_slots_of_work_that_comes_too_late_are_used_again(update, work):
    slots = work.prepare()()
    work.too_late(slots)
    slot = update.take_slot()

    assert any(slot is one for one in slots)


def test_batches_need_not_stay_as_long_as_the_work(update, batch):
    given = [batch(0, 2)]
    seen = weakref.ref(given[0][0])
    work = work_of(update, given, [[2, 2, 0]], 7)
    given.clear()

    assert seen() is None
    assert len(work.prepare()()) == 1


def test_large_batches_are_not_packed(update, batch, monkeypatch):
    work_of(update, [batch(0, 6)], [[6, 6, 0]], 0).prepare()()
    monkeypatch.setattr(batches, "LARGEST_BYTES", 4 * 6 * 3 - 1)
    slots = work_of(update, [batch(0, 6)], [[6, 6, 0]], 0).prepare()()
    taken = update.step.layout.read([v.handle for v in slots[0]])

    assert int(taken.rows) == 6
    assert (
        update.step.writer(1, is_packed=False).write is not update.step.writer(1).write
    )
