import re
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from tfdist.liveness import hub as hub_module
from tfdist.liveness import lifeline as lifeline_module
from tfdist.liveness.hub import Hub
from tfdist.liveness.lifeline import Lifeline
from tfdist.recorder.ring import Unrecorded
from tfdist.recorder.step_times import StepTimes
from tfdist.rendezvous.handshake import RankName
from tfdist.rendezvous.wire import receive, send

SECONDS = 120
HUB = "rank 0 (worker 0, h:0)"


class Record(Unrecorded):
    """A record with the content that the test gives."""

    def __init__(self, plan=(), waiting="", times=()):
        self.plan, self.waiting, self.times = plan, waiting, times

    def waits_in(self):
        return self.waiting

    def step_times(self, since=0.0):
        return self.times


class Line:
    """A lifeline of rank 1, and the hub's end of it, played by the test."""

    def __init__(self):
        mine, self.hub = socket.socketpair()
        self.hub.settimeout(SECONDS)
        self.texts = []
        self.failed = threading.Event()
        self.lifeline = Lifeline(mine, 1, HUB, self.on_failure)

    def on_failure(self, text):
        self.texts.append(text)
        self.failed.set()

    def hear(self, kind):
        """Return the next message of a kind."""
        while True:
            message = receive(self.hub, SECONDS)
            if message["kind"] == kind:
                return message

    def join(self):
        """Wait for the end of the thread that listens, which has read all."""
        for thread in threading.enumerate():
            if thread.name == "tfdist lifeline 1":
                thread.join(SECONDS)

    def fail(self, kind="lost", text="rank 2 is gone"):
        send(self.hub, {"kind": "failure", "what": kind, "text": text})
        assert self.failed.wait(SECONDS)


@pytest.fixture
def short_beats(monkeypatch):
    for module in (lifeline_module, hub_module):
        monkeypatch.setattr(module, "BEAT_SECONDS", 0.02)


@pytest.fixture
def line(short_beats):
    line = Line()
    yield line
    line.lifeline.close()
    line.hub.close()


def report_when(line, condition):
    while not condition(report := line.hear("beat")["report"]):
        continue
    return report


def test_a_call_within_a_call_is_not_counted(line):
    with line.lifeline.call("outer"), line.lifeline.call("inner"):
        within = report_when(line, lambda report: report["inside"])
    after = report_when(line, lambda report: not report["inside"])

    assert (within["call"], within["what"]) == (1, "outer")
    assert (after["call"], after["what"]) == (1, "outer")


def test_the_plan_and_the_collective_are_sent_after_a_long_wait(line, monkeypatch):
    monkeypatch.setattr(lifeline_module, "_SEND_PLAN_SECONDS", 1000.0)
    line.lifeline.record = Record(["all_reduce 'a'"], "bucket 1 of step 7")
    with line.lifeline.call("step"):
        soon = report_when(line, lambda report: report["inside"])
        monkeypatch.setattr(lifeline_module, "_SEND_PLAN_SECONDS", 0.0)
        later = report_when(line, lambda report: report["plan"])

    assert (soon["plan"], soon["collective"]) == ([], "")
    assert later["plan"] == ["all_reduce 'a'"]
    assert later["collective"] == "bucket 1 of step 7"


def test_the_usual_times_of_a_hundred_steps_are_sent(line):
    times = [StepTimes(2.0, 1.0, 0.5)] * 120 + [StepTimes(90.0, 1.0, 0.5)]
    line.lifeline.record = Record(times=times)

    sent = line.hear("times")["times"]

    assert sent == {"step": 2.0, "input": 1.0, "collectives": 0.5}


def test_short_steps_are_judged_by_those_between_two_looks(line):
    # Between two looks, which is 0.1 s here, there were 350 steps.
    by_age = [(700, 9.0), (300, 0.0002), (150, 0.0004)]
    times = [StepTimes(step, 0.0, 0.0) for count, step in by_age for _ in range(count)]
    line.lifeline.record = Record(times=times)

    assert line.hear("times")["times"]["step"] == 0.0002


def test_only_the_chief_gets_what_is_for_it(ranks):
    with ThreadPoolExecutor() as pool:
        values = [
            pool.submit(line.gather, "a", rank) for rank, line in enumerate(ranks)
        ]

        assert [its.result(SECONDS) for its in values] == [[0, 1, 2], [], []]


@pytest.mark.parametrize("joint", [True, False])
def test_only_a_joint_exchange_is_a_call(line, joint):
    with ThreadPoolExecutor() as pool:
        values = pool.submit(line.lifeline.exchange, "x", 0, joint=joint)
        key = line.hear("exchange")["key"]
        if joint:
            report = report_when(line, lambda report: report["inside"])
        else:
            *_, report = [line.hear("beat")["report"] for _ in range(3)]
        send(line.hub, {"kind": "values", "key": key, "values": []})
        values.result(SECONDS)

    assert report["inside"] is joint
    assert report["what"] == ("the exchange of x" if joint else "nothing yet")


@pytest.mark.parametrize(
    ("kind", "error"),
    [("lost", ConnectionError), ("stalled", TimeoutError), ("disagree", RuntimeError)],
)
def test_a_failure_ends_an_exchange_with_its_error(line, kind, error):
    with ThreadPoolExecutor() as pool:
        values = pool.submit(line.lifeline.exchange, "x", 0)
        line.hear("exchange")
        line.fail(kind, "rank 2 is gone")

        with pytest.raises(error, match="rank 2 is gone"):
            values.result(SECONDS)


def test_after_a_failure_everything_raises_it(line):
    line.lifeline.check()
    line.fail()

    for ask in (line.lifeline.check, line.lifeline.wait_for_failure):
        with pytest.raises(ConnectionError, match="rank 2 is gone"):
            ask()
    with pytest.raises(ConnectionError, match="rank 2 is gone"):
        line.lifeline.exchange("x", 0)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"kind": "told", "what": "the file", "call": 1, "value": 2}, 2),
        ({"kind": "beat", "call": 2}, False),
        ({"kind": "beat", "call": None}, False),
    ],
    ids=["told", "in the next call", "left"],
)
def test_rank_0_is_waited_for_while_it_may_tell(line, message, told):
    with line.lifeline.call("step"):
        pass
    send(line.hub, {"kind": "told", "what": "the file", "call": 1, "value": 1})
    send(line.hub, {"kind": "told", "what": "another", "call": 1, "value": 0})
    # Before the step.
    send(line.hub, {"kind": "told", "what": "the file", "call": 0, "value": 0})
    send(line.hub, {"kind": "beat", "call": 1})

    assert line.lifeline.wait_for_chief("the file") == 1
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(line.lifeline.wait_for_chief, "the file")
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        send(line.hub, message)
        assert waiting.result(SECONDS) is told


def test_what_rank_0_tells_has_the_number_of_its_last_call(line):
    with line.lifeline.call("step"):
        pass
    line.lifeline.tell("the file", True)

    told = {"kind": "told", "what": "the file", "call": 1, "value": True}
    assert line.hear("told") == told


def test_the_first_failure_is_told_once(line):
    line.fail(text="first")
    send(line.hub, {"kind": "failure", "what": "lost", "text": "second"})
    line.hub.close()

    line.join()
    assert line.texts == ["first"]


def test_a_reason_that_comes_late_is_waited_for(line):
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(line.lifeline.wait_for_failure)
        line.fail()

        with pytest.raises(ConnectionError, match="rank 2 is gone"):
            waiting.result(SECONDS)


def test_a_hub_that_goes_away_is_a_lost_rank(line):
    line.hub.close()
    assert line.failed.wait(SECONDS)

    with pytest.raises(
        ConnectionError,
        match=r"rank 0 \(worker 0, h:0\) is gone: its connection closed\. Look at the "
        "end of its log for the cause, then start all ranks again",
    ):
        line.lifeline.check()


ENDED = rf"^{re.escape(HUB)} has ended its program, without an error, while this rank"


def say_goodbye(line):
    """Leave as rank 0 does in good order."""
    send(line.hub, {"kind": "beat", "call": None})
    line.hub.close()


def test_work_without_rank_0_goes_on_after_its_end_until_it_is_needed(line):
    say_goodbye(line)
    line.join()

    line.lifeline.check()
    assert line.lifeline.stops_here(True) is False
    with pytest.raises(ConnectionError, match=f"{ENDED} waits for it in step 1"):
        line.lifeline.call("step 1").__enter__()
    for joint in (True, False):
        with pytest.raises(ConnectionError, match="in the exchange of losses"):
            line.lifeline.exchange("losses", 0, joint=joint)
    assert line.texts == []


def test_a_rank_that_waits_for_rank_0_is_interrupted_by_its_end(line):
    with line.lifeline.call("step 1"):
        say_goodbye(line)
        assert line.failed.wait(SECONDS)

    with pytest.raises(ConnectionError, match=f"{ENDED} waits for it in step 1"):
        line.lifeline.check()


def test_a_silent_hub_is_a_lost_rank(monkeypatch):
    monkeypatch.setattr(lifeline_module, "SILENCE_SECONDS", 0.2)
    line = Line()
    assert line.failed.wait(SECONDS)

    with pytest.raises(ConnectionError, match=r"rank 0 .* has been silent for 0 s"):
        line.lifeline.check()
    line.lifeline.close()
    line.hub.close()


def test_leaving_says_goodbye_and_is_no_failure(line):
    with line.lifeline.call("last"):
        pass
    line.lifeline.close()
    bye = line.hear("bye")
    line.hub.close()

    assert bye["error"] == ""
    assert (bye["report"]["call"], bye["report"]["what"]) == (1, "last")
    assert not line.failed.wait(0.1)


def test_leaving_with_an_exception_tells_it(line, monkeypatch):
    monkeypatch.setattr(sys, "last_value", ValueError("x" * 5000), raising=False)
    line.lifeline.close()

    error = line.hear("bye")["error"]

    assert error.startswith("ValueError: xxx")
    assert len(error) == 2000


@pytest.fixture
def ranks(short_beats):
    """Return three lifelines that are joined by a hub."""
    pairs = [socket.socketpair() for _ in range(3)]
    names = {rank: RankName(rank, "h") for rank in range(3)}
    Hub({rank: its for rank, (_, its) in enumerate(pairs)}, names, 600.0)
    lifelines = [
        Lifeline(mine, rank, "rank 0", lambda text: None)
        for rank, (mine, _) in enumerate(pairs)
    ]
    yield lifelines
    for lifeline in lifelines:
        lifeline.close()


def test_a_rank_that_left_ends_the_exchange_of_the_others(ranks):
    lifelines = ranks
    lifelines[2].close()

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(line.exchange, "a", 0) for line in lifelines[:2]]
        for values in waiting:
            with pytest.raises(
                ConnectionError,
                match=r"rank 2 \(h\) has ended .* while others wait for it in a",
            ):
                values.result(SECONDS)


def steps_until_stop(lifeline, step, wish):
    """Run steps, which no rank ends before all have begun; wish to stop after some."""
    for number in range(1, 500):
        step.wait(SECONDS)
        if lifeline.stops_here(number >= wish):
            return number
    raise AssertionError


@pytest.mark.parametrize("wishes", [(60, 999, 999), (999, 999, 60), (60, 61, 60)])
def test_all_ranks_stop_after_the_same_step(ranks, wishes):
    step = threading.Barrier(3)

    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(steps_until_stop, line, step, wish)
            for line, wish in zip(ranks, wishes, strict=True)
        ]
        ended = {one.result(SECONDS) for one in running}

    assert len(ended) == 1
    assert ended <= {60, 61}


def test_a_rank_that_told_its_next_step_waits_there(line):
    assert not line.lifeline.stops_here(wishes=False)
    send(line.hub, {"kind": "stop"})
    told = line.hear("exchange")

    with ThreadPoolExecutor() as pool:
        second = pool.submit(line.lifeline.stops_here, wishes=False)
        assert not wait([second], 0.2).done
        send(line.hub, {"kind": "values", "key": told["key"], "values": [3, 2]})
        assert not second.result(SECONDS)

    assert told["value"] == 2
    assert line.lifeline.stops_here(wishes=False)
