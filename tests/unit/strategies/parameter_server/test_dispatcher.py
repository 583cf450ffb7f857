import logging
import threading
from contextlib import nullcontext

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import dispatcher
from tfdist.strategies.parameter_server.dispatcher import (
    SILENCE_SECONDS,
    Dispatcher,
    Work,
)

SECONDS = 20


class Coordinator:
    """Keeps what is scheduled until a test does it for a worker."""

    def __init__(self):
        self.waiting = []
        self.error = None


class SilentWorkers:
    """Says which workers are silent, once each."""

    def __init__(self, workers=2):
        self.workers = workers
        self.silence = []

    def silent(self):
        return self.silence.pop(0) if self.silence else {}


@pytest.fixture
def coordinator(monkeypatch):
    """Let work wait in the coordinator, and look for errors at once."""
    made = Coordinator()

    def take_error(coordinator):
        error, coordinator.error = coordinator.error, None
        return error

    monkeypatch.setattr(
        dispatcher,
        "schedule",
        lambda coordinator, work: coordinator.waiting.append(work),
    )
    monkeypatch.setattr(dispatcher, "take_error", take_error)
    monkeypatch.setattr(dispatcher, "_POLL_SECONDS", 0.001)
    return made


@pytest.fixture
def heartbeat():
    return SilentWorkers()


@pytest.fixture
def made(coordinator, heartbeat):
    return Dispatcher(coordinator, heartbeat)


@pytest.fixture
def do(coordinator, monkeypatch):
    """Return a function that lets a worker do what was scheduled."""

    def do_as(worker, position=0):
        monkeypatch.setattr(dispatcher, "current_worker", lambda: worker)
        return coordinator.waiting.pop(position)()

    return do_as


def work_of(result, tag=None):
    return Work(lambda: lambda: result, tag)


def test_work_comes_back_as_it_arrives(made, do):
    first, second = work_of("a", 1), work_of("b", 2)
    made.submit(first)
    made.submit(second)
    assert made.in_flight == 2
    assert made.take(wait=False) is None
    do(1, 1)
    do(0)

    assert made.take(wait=True) is second
    assert (second.result, second.tag, second.worker) == ("b", 2, 1)
    assert (second.has_arrived, first.has_arrived) == (True, False)
    assert made.take(wait=False) is first
    assert made.in_flight == 0


# Workers that hang.


def test_what_a_silent_worker_has_begun_is_given_to_another(
    made, coordinator, heartbeat, monkeypatch, caplog
):
    """The worker is silent when it has begun; the others then do its work."""
    monkeypatch.setattr(dispatcher, "current_worker", lambda: 1)
    places, begun = iter(["first place", "second place"]), []

    def prepare():
        place = next(places)

        def call():
            begun.append(place)
            if place == "first place":
                raise KeyboardInterrupt
            return place

        return call

    work, waiting = Work(prepare), work_of("nobody has begun it")
    made.submit(work)
    made.submit(waiting)
    with pytest.raises(KeyboardInterrupt):
        coordinator.waiting.pop(0)()
    heartbeat.silence = [{1: 31.2}]
    with caplog.at_level(logging.WARNING):
        made._resubmit()

    assert "worker 1 has not answered for 31 s; another worker repeats" in caplog.text
    assert work.worker is None
    assert len(coordinator.waiting) == 2
    coordinator.waiting.pop()()
    assert made.take(wait=True) is work
    assert begun == ["first place", "second place"]
    assert work.result == "second place"


def test_what_comes_on_late_is_given_back_when_it_comes(made, coordinator, do):
    """Until then its worker may write where it was to leave the result."""
    places, late = iter(["first place", "second place"]), []

    def prepare():
        place = next(places)

        def call():
            if place == "first place":
                do(1)
                assert made.take(wait=True) is work
                assert late == []
            return place

        return call

    work, other = Work(prepare, on_late=late.append), work_of("other")
    made.submit(work)
    made.submit(work)
    assert made.in_flight == 1
    do(0)
    assert work.result == "second place"
    made.submit(other)
    do(1)

    assert made.take(wait=True) is other
    assert late == ["first place"]


def test_if_no_worker_answers_there_is_an_error(made, heartbeat):
    made.submit(work_of("never"))
    heartbeat.silence = [{0: 35.0}, {0: 42.4, 1: 30.6}]

    with pytest.raises(
        TimeoutError,
        match=r"No worker answers any more\. Received: no sign of life for 31 s from "
        r"any of 2 workers\. Check whether their processes are stopped",
    ):
        made.take(wait=True)
    assert made.in_flight == 0


# Errors.


def fails_with(error):
    def call():
        raise error

    return Work(lambda: call)


def test_an_error_of_tensorflow_has_the_name_of_its_worker(made, do):
    """It does not wait for what others are at: TensorFlow hears nothing of it."""
    error = tf.errors.InvalidArgumentError(None, None, "labels")
    made.submit(work_of("a worker that hangs"))
    made.submit(fails_with(error))
    do(1, 1)

    with pytest.raises(tf.errors.InvalidArgumentError, match="labels") as raised:
        made.take(wait=True)
    assert raised.value.__notes__ == ["tfdist: this happened on worker 1."]
    assert made.in_flight == 0


def test_an_error_of_one_training_does_not_concern_another(
    made, coordinator, heartbeat, do
):
    other = Dispatcher(coordinator, heartbeat)
    work = work_of("a prediction meanwhile")
    made.submit(fails_with(ValueError("of a fit")))
    other.submit(work)
    do(0)
    do(1)

    assert other.take(wait=True) is work
    with pytest.raises(ValueError, match="of a fit"):
        made.take(wait=True)


def test_what_tensorflow_gives_up_is_raised(made, do, coordinator):
    """It may try again after the loss of a server, and then does not."""
    name = "GRPC error information from remote target /job:ps/replica:0/task:0"
    lost = tf.errors.UnavailableError(None, None, name)
    made.submit(fails_with(lost))
    with pytest.raises(tf.errors.UnavailableError):
        do(1)
    coordinator.error = lost

    with pytest.raises(tf.errors.UnavailableError, match=name) as raised:
        made.take(wait=True)
    assert raised.value.__notes__ == ["tfdist: this happened on worker 1."]
    assert made.in_flight == 0


def test_a_lost_worker_is_no_error_of_the_work(made, do, coordinator):
    """TensorFlow calls it again, and it gets another place for the result."""
    lost = tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:1")
    places = iter(["lost", "found"])

    def prepare():
        place = next(places)

        def call():
            if place == "lost":
                raise lost
            return place

        return call

    work = Work(prepare)
    made.submit(work)
    [attempt] = coordinator.waiting
    with pytest.raises(tf.errors.UnavailableError):
        do(1)
    coordinator.waiting.append(attempt)
    do(0)

    assert made.take(wait=True) is work
    assert (work.result, work.worker) == ("found", 0)


def test_what_is_forgotten_is_not_done_and_its_errors_are_nobody_s(made, do):
    done = []
    made.submit(Work(lambda: lambda: done.append("not begun")))
    made.drop()
    do(0)

    def fail():
        made.drop()
        raise ValueError

    made.submit(Work(lambda: fail))
    do(1)
    other = work_of("other")
    made.submit(other)
    do(1)

    assert done == []
    assert made.take(wait=True) is other


# Workers that choose.


class Choice:
    """Gives works in order, and notes what has become of them."""

    def __init__(self, *works):
        self.works = list(works)
        self.ended = []

    def begin(self, worker):
        return self.works.pop(0) if self.works else None

    def end(self, worker, work, *, has_arrived):
        self.ended.append((worker, work, has_arrived))


def test_each_worker_is_asked_until_there_is_nothing_to_do(made, coordinator, do):
    first, second = work_of(1), work_of(2)
    choice = Choice(first, second, first)
    made.offer([first, second], choice)
    assert (made.in_flight, len(coordinator.waiting)) == (2, 2)
    do(0)
    do(1)

    assert choice.ended == [(0, one, True) for one in (first, second, first)]
    assert made.take(wait=True) is first
    assert made.take(wait=True) is second
    assert made.take(wait=True) is None


def test_what_workers_that_hang_have_chosen_is_left_to_the_choice(
    made, coordinator, heartbeat, do
):
    work = work_of("done")
    made.offer([work], Choice(work))
    heartbeat.silence = [{0: 31.0}]
    made._resubmit()
    assert len(coordinator.waiting) == 2
    do(0)

    assert made.take(wait=True) is work


@pytest.mark.parametrize(
    ("error", "is_said"),
    [
        (ValueError("wrong"), True),
        (
            tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:1"),
            False,
        ),
    ],
)
def test_the_choice_hears_of_what_may_be_tried_again(made, do, error, is_said):
    work = fails_with(error)
    choice = Choice(work)
    made.offer([work], choice)
    if is_said:
        do(1)
        with pytest.raises(ValueError, match="wrong"):
            made.take(wait=True)
    else:
        with pytest.raises(tf.errors.UnavailableError):
            do(1)

    assert choice.ended == [(1, work, is_said)]


SECONDS = 20


@pytest.fixture
def quiet(monkeypatch):
    """Return a heartbeat that asks nobody."""
    monkeypatch.setattr(dispatcher, "_beat", lambda *args: None)
    return dispatcher.Heartbeat(3)


def test_whoever_does_not_answer_for_long_is_silent(quiet, monkeypatch):
    monkeypatch.setattr(dispatcher.time, "monotonic", lambda: 1000.0)
    quiet._asked_at[:] = [None, 999.0, 1000.0 - SILENCE_SECONDS - 5]

    assert quiet.silent() == {2: SILENCE_SECONDS + 5}
    assert quiet.workers == 3


class Rounds:
    """Lets a worker be asked a number of times."""

    def __init__(self, count):
        self.left = count

    def wait(self, seconds):
        assert seconds == dispatcher.BEAT_SECONDS
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("error", [None, tf.errors.UnavailableError])
def test_a_worker_that_answers_or_has_ended_is_not_silent(monkeypatch, error):
    asked_at, devices, seen = [None, None], [], []

    def answer(value):
        seen.append((int(value), asked_at[0] is None, asked_at[1] is not None))
        if error is not None:
            raise error(None, None, "away")
        return value

    monkeypatch.setattr(tf, "device", lambda name: nullcontext(devices.append(name)))
    monkeypatch.setattr(tf, "identity", answer)
    dispatcher._beat(1, asked_at, Rounds(2))

    assert devices == ["/job:worker/replica:0/task:1"]
    assert seen == [(1, True, True)] * 2
    assert asked_at == [None, None]


def test_it_ends_with_its_owner(monkeypatch):
    ended = threading.Event()

    def beat(worker, asked_at, stop):
        assert stop.wait(SECONDS)
        ended.set()

    monkeypatch.setattr(dispatcher, "_beat", beat)
    made = dispatcher.Heartbeat(1)
    del made

    assert ended.wait(SECONDS)
