import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import engine
from tfdist.strategies.parameter_server import together as module
from tfdist.strategies.parameter_server.engine import Engine, Work
from tfdist.strategies.parameter_server.parts import Paces, Parts
from tfdist.strategies.parameter_server.sending import work_of
from tfdist.strategies.parameter_server.together import Together


def together_of(strategy):
    return Together(strategy, Engine(strategy.coordinator, strategy.heartbeat))


def copy_of(model):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.compile("adam", "mse")
    return copy


@pytest.mark.parametrize(
    ("rows", "parts"), [(5, [[2, 5, 0], [3, 5, 1]]), (1, [[1, 1, 0]])]
)
def test_each_worker_has_a_part_of_a_batch(
    make_strategy, batch, update_of, monkeypatch, rows, parts
):
    sent = []

    def noted(update, batches, rows, first):
        sent.append((int(batches[0][0].shape[0]), rows[0]))
        return work_of(update, batches, rows, first)

    monkeypatch.setattr(module, "work_of", noted)
    strategy = make_strategy("sync")
    together_of(strategy)(update_of(strategy), batch(0, rows))

    assert sent == [(part[0], part) for part in parts]
    assert int(strategy.extended.version) == 1


def test_the_parts_make_the_step_of_the_whole(make_strategy, model, batch, update_of):
    plain = copy_of(model)
    strategy = make_strategy("sync")
    together, update = together_of(strategy), update_of(strategy)
    for _ in range(3):
        together(update, batch(0, 5))
        plain.train_on_batch(*batch(0, 5))

    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_slots_are_used_again(make_strategy, batch, update_of, monkeypatch):
    strategy = make_strategy("sync")
    together, update = together_of(strategy), update_of(strategy)
    together(update, batch(0, 5))
    monkeypatch.setattr(update.step.layout, "make", None)
    together(update, batch(0, 5))

    assert int(strategy.extended.version) == 2


# Backup workers.

SECONDS = 20


class Workers:
    """Three workers, of which one is a backup: threads, whose work can be held up."""

    def __init__(self):
        self.local = threading.local()
        self.threads = []
        # What each has begun, and what holds it up, by worker.
        self.begun = []
        self.held_up = {}

    def schedule(self, coordinator, work):
        def do(worker):
            self.local.worker = worker
            work()

        worker = len(self.threads) % 3
        self.threads.append(threading.Thread(target=do, args=(worker,)))
        self.threads[-1].start()

    def work_of(self, update, batches, rows, first):
        work = work_of(update, batches, rows, first)

        def prepare():
            call, worker = work.prepare(), self.local.worker
            self.begun.append((worker, rows[0]))

            def held_up():
                if worker in self.held_up:
                    assert self.held_up[worker].wait(SECONDS)
                return call()

            return held_up

        return Work(prepare, work.tag, work.too_late)


@pytest.fixture
def workers(monkeypatch):
    workers = Workers()
    monkeypatch.setattr(module, "work_of", workers.work_of)
    yield workers
    for thread in workers.threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def with_backup(make_strategy, workers, monkeypatch):
    """Return a strategy of these workers."""
    strategy = make_strategy("sync")
    strategy.workers, strategy.backup_workers = 3, 1
    strategy.heartbeat = SimpleNamespace(workers=3, silent=dict)
    monkeypatch.setattr(engine, "schedule", workers.schedule)
    monkeypatch.setattr(engine, "current_worker", lambda: workers.local.worker)
    return strategy


def test_with_a_backup_worker_there_is_a_part_less(
    with_backup, batch, update_of, workers
):
    together_of(with_backup)(update_of(with_backup), batch(0, 5))

    assert {tuple(rows) for _, rows in workers.begun} == {(2, 5, 0), (3, 5, 1)}
    assert int(with_backup.extended.version) == 1


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_worker_that_is_held_up_is_not_waited_for(
    with_backup, model, batch, update_of, workers, slow
):
    """Not even the one that has begun; and its late results do no harm."""
    plain = copy_of(model)
    together, update = together_of(with_backup), update_of(with_backup)
    workers.held_up[slow] = threading.Event()
    for step in range(6):
        if step == 4:
            workers.held_up[slow].set()
        together(update, batch(0, 5))
        plain.train_on_batch(*batch(0, 5))

    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert int(with_backup.extended.version) == 6


def test_nobody_waits_for_more_after_an_error(with_backup, batch, update_of, workers):
    """Neither does a worker whose part is missing for ever: the fixture looks."""
    together, update = together_of(with_backup), update_of(with_backup)
    wrong = batch(0, 5)[0], batch(0, 4)[1]

    with pytest.raises(tf.errors.InvalidArgumentError):
        together(update, wrong)
    together(update, batch(0, 5))

    assert int(with_backup.extended.version) == 1


def test_a_part_of_a_lost_worker_is_begun_anew_and_others_hear_of_it():
    works = [Work(lambda: lambda: None)]
    turns = module._Turns(works, Parts(1, Paces()))
    assert turns.begin(0) is works[0]
    found = []
    other = threading.Thread(target=lambda: found.append(turns.begin(0)))
    other.start()
    turns.end(0, works[0], has_arrived=False)
    other.join(SECONDS)

    assert found == works
    turns.end(0, works[0], has_arrived=True)
    assert turns.begin(1) is None


def test_who_waits_for_something_to_do_can_be_let_go():
    turns = module._Turns([Work(lambda: lambda: None)], Parts(1, Paces()))
    turns.begin(0)
    waiting = threading.Thread(target=turns.begin, args=(0,))
    waiting.start()
    turns.stop()
    waiting.join(SECONDS)

    assert not waiting.is_alive()
