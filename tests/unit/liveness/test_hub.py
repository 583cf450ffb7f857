import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tfdist.cluster.launcher import (
    PROGRESS_VARIABLE,
    Launcher,
    ask_for_status,
    read_culprit,
    read_status,
)
from tfdist.liveness import hub as hub_module
from tfdist.liveness.diagnosis import Failure, Report, find_failure
from tfdist.liveness.hub import Hub
from tfdist.rendezvous.handshake import RankName
from tfdist.rendezvous.wire import receive, send

SECONDS = 120
REPORT = {"call": 0, "what": "x", "inside": False, "seconds": 0.0, "plan": []}
BYE = {"kind": "bye", "error": "", "report": REPORT}


class Ends:
    """The ranks' ends of the connections, played by the test."""

    def __init__(self, size, timeout_seconds=600.0):
        pairs = [socket.socketpair() for _ in range(size)]
        self.ends = [end for end, _ in pairs]
        for end in self.ends:
            end.settimeout(SECONDS)
        self.hub = Hub(
            {rank: its for rank, (_, its) in enumerate(pairs)},
            {rank: RankName(rank, f"worker {rank}, h:{rank}") for rank in range(size)},
            timeout_seconds,
        )

    def say(self, rank, **message):
        send(self.ends[rank], message)

    def hear(self, rank, kind):
        """Return the next message of a kind."""
        while True:
            message = receive(self.ends[rank], SECONDS)
            if message["kind"] == kind:
                return message

    def close(self):
        for end in self.ends:
            end.close()
        self.hub.join(SECONDS)


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(hub_module, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(hub_module, "_ANSWER_SECONDS", SECONDS)
    made = []

    def make(size, **options):
        made.append(Ends(size, **options))
        return made[-1]

    yield make
    for ends in made:
        ends.close()
        assert not ends.hub._thread.is_alive()


def test_all_hear_what_rank_0_tells_and_where_it_is(ranks):
    ends = ranks(2)
    told = {"kind": "told", "what": "the file", "call": 3, "value": True}
    ends.say(0, kind="beat", report=REPORT | {"call": 3})
    ends.say(0, **told)

    assert ends.hear(1, "told") == told
    assert ends.hear(1, "beat") == {"kind": "beat", "call": 3}
    ends.say(0, **BYE)
    while ends.hear(1, "beat")["call"] is not None:
        continue


def test_everyone_hears_of_a_rank_whose_connection_closed(ranks):
    ends = ranks(3)
    ends.ends[1].close()

    for rank in (0, 2):
        failure = ends.hear(rank, "failure")
        assert failure["what"] == "lost"
        assert failure["text"] == (
            "rank 1 (worker 1, h:1) is gone: its connection closed. Look at the end of "
            "its log for the cause (a crash, a signal, no memory left, a cut network), "
            "then start all ranks again."
        )


def test_a_rank_that_leaves_in_good_order_is_not_lost(ranks):
    ends = ranks(2)
    send(ends.ends[1], BYE)
    ends.ends[1].close()

    kinds = [receive(ends.ends[0], SECONDS)["kind"] for _ in range(5)]

    assert set(kinds) == {"beat"}


def test_a_value_given_before_leaving_counts(ranks):
    ends = ranks(2)
    ends.say(1, kind="exchange", key='["a", 0]', value=1)
    send(ends.ends[1], BYE)
    ends.ends[1].close()
    ends.say(0, kind="exchange", key='["a", 0]', value=0)

    assert ends.hear(0, "values")["values"] == [0, 1]


def test_a_silent_rank_is_lost_and_one_that_left_is_not(ranks, monkeypatch, tmp_path):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "0"))
    ends = ranks(3)
    send(ends.ends[2], BYE)
    # Rank 0 is heard later than rank 1 could have been.
    ends.hear(0, "beat")
    ends.say(0, kind="beat", report=REPORT | {"call": 1})
    while ends.hear(0, "beat")["call"] != 1:
        continue
    monkeypatch.setattr(hub_module, "SILENCE_SECONDS", 1.0)
    failure = None
    while failure is None:
        ends.say(0, kind="beat", report=REPORT)
        message = receive(ends.ends[0], SECONDS)
        failure = message if message["kind"] == "failure" else None

    assert "rank 1 (worker 1, h:1) has been silent for 1 s" in failure["text"]
    assert read_culprit(tmp_path / "0") == 1


def join_reports():
    """Wait for what threads print."""
    for thread in threading.enumerate():
        if thread.name == "tfdist report":
            thread.join(SECONDS)


ANSWER = {"kind": "stacks", "doing": "runs `f()` at line 3 of a.py", "stacks": ["  s"]}
ANSWER["reads_input"] = False


def test_a_stall_is_explained_by_what_the_ranks_do(ranks, monkeypatch, tmp_path, capfd):
    """Rank 2 does not answer."""
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "0"))
    seconds = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds[0])
    monkeypatch.setattr(hub_module, "time", clock)
    ends = ranks(3, timeout_seconds=5.0)
    waits = {"call": 1, "what": "train_step", "inside": True, "seconds": 6.0}
    # Rank 2 is known to be in the call before rank 0 has waited too long.
    ends.say(2, kind="beat", report=REPORT | waits | {"seconds": 4.0})
    for rank in (0, 2):
        ends.say(rank, kind="beat", report=REPORT | waits)
    for rank in (0, 1):
        ends.hear(rank, "stacks")
        ends.say(rank, **ANSWER)
    for rank in range(3):
        ends.say(rank, kind="exchange", key='["a", 0]', value=0)
    # The answers, which were sent before, have arrived.
    ends.hear(0, "values")
    seconds[0] = 2 * SECONDS

    failure = ends.hear(1, "failure")

    assert failure["what"] == "stalled"
    seen = (
        "rank 1 runs `f()` at line 3 of a.py; each of rank 0 and rank 2 waits in "
        "train_step (joint call 1), for 6 s."
    )
    told = f"Seen now: {seen} The stacks of all are in the output of rank 0."
    assert told in failure["text"]
    join_reports()
    printed = capfd.readouterr().err
    assert printed.startswith(f"tfdist: {seen}\nStack of rank 0 and rank 1, ")
    assert read_culprit(tmp_path / "0") == 1


def test_a_report_that_cannot_be_printed_ends_nothing(ranks, monkeypatch, tmp_path):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "no folder" / "0"))
    closed = io.StringIO()
    closed.close()
    ends = ranks(2, timeout_seconds=5.0)
    waits = {"call": 1, "what": "train_step", "inside": True, "seconds": 6.0}
    with contextlib.redirect_stderr(closed):
        ends.say(0, kind="beat", report=REPORT | waits)
        for rank in (0, 1):
            ends.hear(rank, "stacks")
            ends.say(rank, **ANSWER)

        assert "Seen now: rank 1 runs `f()`" in ends.hear(1, "failure")["text"]
        join_reports()
    ends.hear(0, "beat")


def test_a_rank_that_takes_nothing_delays_no_other(ranks):
    ends = ranks(2)
    # More than the connection to rank 1 holds, which reads nothing yet.
    ends.ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    large = "x" * 2**24
    ends.say(0, kind="exchange", key='["a", 0]', value=large)
    ends.say(1, kind="exchange", key='["a", 0]', value="")

    assert ends.hear(0, "values")["values"] == [large, ""]
    for _ in range(3):
        ends.hear(0, "beat")
    assert ends.hear(1, "values")["values"] == [large, ""]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"kind": []},
        {"kind": "beat", "report": None},
        {"kind": "beat", "report": {**REPORT, "call": float("inf")}},
        {"kind": "beat", "report": {**REPORT, "seconds": "long"}},
        {"kind": "bye"},
        {"kind": "error"},
        {"kind": "stacks", "doing": ""},
        {"kind": "exchange", "key": [], "value": 1},
        {"kind": "exchange", "key": "a", "value": 1},
        {"kind": "exchange", "key": "[" * 10**5, "value": 1},
        b"[" * 10**6,
    ],
    ids=range(12),
)
def test_a_malformed_message_ends_its_rank_and_not_the_hub(ranks, message):
    ends = ranks(2)
    if isinstance(message, bytes):
        ends.ends[1].sendall(len(message).to_bytes(4, "big") + message)
    else:
        ends.say(1, **message)

    text = ends.hear(0, "failure")["text"]

    assert text.startswith("rank 1 (worker 1, h:1) has sent a malformed message. Look")
    ends.hear(0, "beat")


@pytest.mark.parametrize("name", ["error", "text"])
@pytest.mark.parametrize("value", [5, ["a"], {"a": None}])
def test_an_error_may_be_anything(ranks, name, value):
    ends = ranks(2)
    kind = {"error": "bye", "text": "error"}[name]
    ends.say(1, kind=kind, report=REPORT, **{name: value})

    assert f"with {value}. Look at" in ends.hear(0, "failure")["text"]
    ends.hear(0, "beat")


NAMES = {rank: f"rank {rank} (worker {rank}, h{rank}:1)" for rank in range(3)}


def find(reports, left=(), timeout_seconds=600.0):
    return find_failure(dict(enumerate(reports)), left, NAMES, timeout_seconds)


def inside(call, what="step", seconds=10.0, plan=()):
    return Report(call, what, True, seconds, plan)


def outside(call, what="step", seconds=10.0):
    return Report(call, what, False, seconds)


def test_a_rank_that_left_before_a_call_is_named():
    failure = find([inside(5, "all_reduce 'a'"), outside(4)], left=[1])

    assert failure == Failure(
        "lost",
        "rank 1 (worker 1, h1:1) has ended its program, without an error, while rank 0 "
        "(worker 0, h0:1) waits for it in all_reduce 'a'. Make the same calls on every "
        "rank: fit, evaluate and predict must not stand where only one of them comes, "
        "as after `if tfdist.is_chief()`. Without a strategy, ranks also end apart if "
        "their numbers of batches or epochs differ, or if EarlyStopping has no "
        "MetricAverageCallback before it.",
    )


def test_different_calls_of_the_same_number_are_named_with_their_ranks():
    failure = find([inside(7, "all_reduce 'a'"), outside(6), inside(7, "barrier")])

    assert failure is not None
    assert failure.kind == "disagree"
    assert (
        "rank 0 (worker 0, h0:1) is in all_reduce 'a', rank 2 (worker 2, h2:1) in "
        "barrier (joint call 7 on both). Make the same calls" in failure.text
    )


def test_who_waits_too_long_is_told_who_is_behind():
    failure = find(
        [inside(9, "fit", 61.0), outside(8, "evaluate", 62.0), inside(9, "fit", 61.0)],
        timeout_seconds=60.0,
    )

    assert failure == Failure(
        "stalled",
        "rank 0 (worker 0, h0:1) has waited 61 s in fit. rank 1 (worker 1, h1:1) is in "
        "no joint call; its last was evaluate, for 62 s. If it is work that takes so "
        "long, raise timeout_seconds of the strategy (now 60), or, without a "
        "strategy, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.",
        culprit=1,
    )


PLANS = [("a", "b"), ("a", "c")]


@pytest.mark.parametrize(
    ("reports", "left"),
    [
        ([Report(), Report()], ()),
        ([inside(3), inside(3)], ()),
        ([inside(3), outside(2)], ()),
        ([inside(5), outside(5)], [1]),
        ([inside(3, seconds=59.0), inside(2, "other", seconds=59.0)], ()),
        ([inside(3, "a", seconds=2.9), inside(3, "b", seconds=10.0)], ()),
        ([inside(3, "a"), outside(3, "b")], ()),
        # Ranks may trace at different times, until one waits too long.
        ([inside(2, seconds=59, plan=plan) for plan in PLANS], ()),
    ],
    ids=["start", "together", "late", "left", "behind", "just now", "through", "trace"],
)
def test_a_rank_that_may_still_come_is_waited_for(reports, left):
    assert find(reports, left, timeout_seconds=60.0) is None


@pytest.mark.parametrize(
    ("reports", "kind", "words"),
    [
        (
            [inside(2, seconds=61, plan=PLANS[0]), inside(2, plan=PLANS[1])],
            "disagree",
            "collective number 1 is b on rank 0 (worker 0, h0:1) and c on rank 1",
        ),
        (
            [inside(2, seconds=61, plan=("a",)), inside(2, plan=("a", "c"))],
            "disagree",
            "collective number 1 is missing on rank 0 (worker 0, h0:1) and c on rank 1",
        ),
        # Graphs are to blame only if they differ in one call.
        (
            [inside(2, "b", 61, PLANS[0]), inside(1, "a", 40, PLANS[1])],
            "stalled",
            "rank 1 (worker 1, h1:1) is in a, for 40 s. If it is work",
        ),
        ([inside(2, seconds=61, plan=("a",)), inside(2)], "stalled", "All ranks are"),
        ([inside(2, seconds=61), outside(2)], "stalled", "h1:1) is in no joint call; "),
    ],
)
def test_a_rank_that_waits_too_long_has_a_reason(reports, kind, words):
    failure = find(reports, timeout_seconds=60.0)

    assert failure is not None
    assert failure.kind == kind
    assert words in failure.text


def test_a_slow_rank_is_named_once_and_in_the_status(
    ranks, capfd, tmp_path, monkeypatch
):
    progress = tmp_path / "0"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    ask_for_status(progress)
    Launcher().note_status("step 100")
    usual = {"step": 10.0, "input": 1.0, "collectives": 8.0}
    ends = ranks(2)
    for _ in range(2):
        ends.say(0, kind="times", times=usual)
        ends.say(1, kind="times", times=usual | {"input": 8.0, "collectives": 1.0})
    ends.say(0, kind="exchange", key='["a", 0]', value=0)
    ends.say(1, kind="exchange", key='["a", 0]', value=0)
    assert ends.hear(0, "values")["values"] == [0, 0]
    assert read_status(progress, "") == "step 100, slowest: rank 1"
    join_reports()

    line = "tfdist: over many steps, rank 1 takes 4.5 times as long as the others, "
    assert capfd.readouterr().err.count(f"{line}because it waits for its input") == 1


FORKS = """
import os, socket, sys, threading
from tfdist.liveness.hub import Hub
from tfdist.rendezvous.handshake import RankName

peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
names = {0: RankName(0), 1: RankName(1)}
hub = Hub({0: socket.socketpair()[0], 1: peer}, names, 100.0)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    threading.Event().wait(100)
os._exit(0)
"""


def test_a_child_does_not_hide_that_rank_0_is_gone():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [sys.executable, "-c", FORKS, str(server.getsockname()[1])],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        peer, _ = server.accept()
        child = int(process.stdout.readline())
        try:
            with peer:
                peer.settimeout(SECONDS)
                while peer.recv(1 << 16):
                    pass
        finally:
            os.kill(child, signal.SIGKILL)
