import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import dispatcher
from tfdist.strategies.parameter_server import sync_step as module
from tfdist.strategies.parameter_server.dispatcher import Dispatcher, Work
from tfdist.strategies.parameter_server.schedule import Paces, Slices
from tfdist.strategies.parameter_server.step_work import sent_steps
from tfdist.strategies.parameter_server.sync_step import SyncStep


def sync_step_of(strategy):
    return SyncStep(strategy, Dispatcher(strategy.coordinator, strategy.heartbeat))


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
        return sent_steps(update, batches, rows, first)

    monkeypatch.setattr(module, "sent_steps", noted)
    strategy = make_strategy("sync")
    sync_step_of(strategy)(update_of(strategy), batch(0, rows))

    assert sent == [(part[0], part) for part in parts]
    assert int(strategy.extended.version) == 1


def test_the_parts_make_the_step_of_the_whole(make_strategy, model, batch, update_of):
    plain = copy_of(model)
    strategy = make_strategy("sync")
    together, update = sync_step_of(strategy), update_of(strategy)
    for _ in range(3):
        together(update, batch(0, 5))
        plain.train_on_batch(*batch(0, 5))

    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


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
        work = sent_steps(update, batches, rows, first)

        def prepare():
            call, worker = work.prepare(), self.local.worker
            self.begun.append((worker, rows[0]))

            def held_up():
                if worker in self.held_up:
                    assert self.held_up[worker].wait(SECONDS)
                return call()

            return held_up

        return Work(prepare, work.tag, work.on_late)


@pytest.fixture
def workers(monkeypatch):
    workers = Workers()
    monkeypatch.setattr(module, "sent_steps", workers.work_of)
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
    monkeypatch.setattr(dispatcher, "schedule", workers.schedule)
    monkeypatch.setattr(dispatcher, "current_worker", lambda: workers.local.worker)
    return strategy


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_worker_that_is_held_up_is_not_waited_for(
    with_backup, model, batch, update_of, workers, slow
):
    """Not even the one that has begun; and its late results do no harm."""
    plain = copy_of(model)
    together, update = sync_step_of(with_backup), update_of(with_backup)
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
    together, update = sync_step_of(with_backup), update_of(with_backup)
    wrong = batch(0, 5)[0], batch(0, 4)[1]

    with pytest.raises(tf.errors.InvalidArgumentError):
        together(update, wrong)
    together(update, batch(0, 5))

    assert int(with_backup.extended.version) == 1


def test_a_part_of_a_lost_worker_is_begun_anew_and_others_hear_of_it():
    works = [Work(lambda: lambda: None)]
    turns = module.SliceChoice(works, Slices(1, Paces()))
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
    turns = module.SliceChoice([Work(lambda: lambda: None)], Slices(1, Paces()))
    turns.begin(0)
    waiting = threading.Thread(target=turns.begin, args=(0,))
    waiting.start()
    turns.stop()
    waiting.join(SECONDS)

    assert not waiting.is_alive()
