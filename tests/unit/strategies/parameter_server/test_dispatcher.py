"""Work and its results, with scheduling by the test in place of TensorFlow's."""

import logging
import threading

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.dispatcher import Dispatcher, Work

SECONDS = 120


class Job:
    """A coordinator and a heartbeat; work waits until the test lets a worker do it."""

    names = ("worker 0 (a:1)", "worker 1 (b:1)")

    def __init__(self, here):
        self._here = here
        self.waiting = []
        self.schedule = self.waiting.append
        self.error = None
        self.silence = {}

    def poll(self):
        return self.error

    def silent(self, seconds):
        return {w: silence for w, silence in self.silence.items() if silence > seconds}

    def do(self, worker, position=0):
        """Let a worker do the scheduled function at a position."""
        self._here.worker = worker
        self.waiting.pop(position)()

    def start(self, worker, position):
        """Let a worker do the scheduled function at a position, on its own thread."""
        work = self.waiting.pop(position)

        def do():
            self._here.worker = worker
            work()

        thread = threading.Thread(target=do)
        thread.start()
        return thread


@pytest.fixture
def job(here):
    return Job(here)


@pytest.fixture
def made(job):
    return Dispatcher(job, job)


def work_of(*results, on_late=None):
    """Return work with a result, or an error, for each attempt."""
    left = iter(results)

    def prepare():
        result = next(left)

        def call():
            if isinstance(result, BaseException):
                raise result
            return result() if callable(result) else result

        return call

    return Work(prepare, on_late)


def test_the_work_of_a_hanging_worker_is_repeated(made, job, caplog):
    work, waiting = work_of(KeyboardInterrupt(), "done"), work_of("not begun")
    made.submit(work, waiting)
    with pytest.raises(KeyboardInterrupt):
        job.do(1)
    job.silence = {0: 0.9, 1: 1.2}
    done = threading.Thread(target=lambda: job.waiting and job.do(0, -1))
    with caplog.at_level(logging.WARNING):
        made._resubmit()
    done.start()

    assert made.take(wait=True) is work
    assert work.result == "done"
    assert (
        "tfdist: worker 1 (b:1) has not answered for 1.2 s; another worker repeats its "
        "unfinished work." in caplog.text
    )
    assert "worker 0" not in caplog.text
    assert len(job.waiting) == 1


def test_a_late_result_is_given_back_once(made, job):
    late = []

    def outrun():
        job.do(1)
        assert made.take(wait=True) is work
        assert late == []
        return "first attempt"

    work = work_of(outrun, "second attempt", on_late=late.append)
    made.submit(work)
    made.submit(work)
    job.do(0)
    assert work.result == "second attempt"
    other = work_of("other")
    made.submit(other)
    job.do(1)

    assert made.take(wait=True) is other
    assert late == ["first attempt"]


def test_an_error_is_raised_if_no_worker_answers(made, job):
    made.submit(work_of("never"))
    job.silence = {0: 32.4, 1: 24.0}
    made._resubmit()
    job.silence[1] = 25.6

    with pytest.raises(TimeoutError) as error:
        made.take(wait=True)
    assert str(error.value) == (
        "No worker answers any more. Received: no sign of life for 26 s from worker 0 "
        "(a:1), worker 1 (b:1). Check whether they have ended or are stopped, and "
        "start the job again."
    )
    assert made.in_flight == 0


def test_an_error_names_its_worker_and_concerns_its_own_dispatcher(made, job):
    other, prediction = Dispatcher(job, job), work_of("a prediction")
    error = tf.errors.InvalidArgumentError(None, None, "labels")
    made.submit(work_of("not begun"), work_of(error))
    other.submit(prediction)
    job.do(1, 1)
    job.do(0, 1)

    assert other.take(wait=True) is prediction
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels") as raised:
        made.take(wait=True)
    assert raised.value.__notes__ == ["tfdist: this happened on worker 1."]
    assert made.in_flight == 0


def test_dropped_work_is_not_begun_and_its_errors_are_ignored(made, job):
    def fail():
        made.drop()
        raise ValueError

    made.submit(work_of())
    made.drop()
    made.submit(work_of(fail))
    other = work_of("other")
    job.do(0)
    job.do(1)
    made.submit(other)
    job.do(1)

    assert made.take(wait=True) is other


# Spare workers.


@pytest.mark.parametrize("slow", [0, 1])
def test_spare_workers_repeat_unfinished_work_and_no_more(job, slow):
    made = Dispatcher(job, job, 1)
    has_begun, held_up, late = threading.Event(), threading.Event(), []

    def hold_up():
        has_begun.set()
        assert held_up.wait(SECONDS)
        return "late"

    works = [work_of("in time"), work_of("in time")]
    works[slow] = work_of(hold_up, "repeated", on_late=late.append)
    made.submit(*works)
    assert len(job.waiting) == 3
    slow_thread = job.start(slow, slow)
    assert has_begun.wait(SECONDS)
    job.start(1 - slow, 0).join(SECONDS)
    job.do(2)
    found = {made.take(wait=True), made.take(wait=True)}
    assert found == set(works)
    assert works[slow].result == "repeated"

    # A late attempt counts: another repetition would delay the work that follows.
    following = [work_of("a"), work_of("b")]
    made.submit(*following)
    job.do(1)
    job.do(2)
    assert {made.take(wait=True), made.take(wait=True)} == set(following)
    held_up.set()
    slow_thread.join(SECONDS)
    job.do(0)
    last = work_of("last")
    made.submit(last)
    job.do(0)
    assert made.take(wait=True) is last
    assert late == ["late"]


# Heartbeats.
