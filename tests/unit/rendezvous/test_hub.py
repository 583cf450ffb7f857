import socket

import pytest

from tfdist.rendezvous import hub as hub_module
from tfdist.rendezvous.hub import Hub
from tfdist.rendezvous.wire import receive, send

SECONDS = 10
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
            {rank: f"rank {rank} (worker {rank}, h:{rank})" for rank in range(size)},
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
    made = []

    def make(size, **options):
        made.append(Ends(size, **options))
        return made[-1]

    yield make
    for ends in made:
        ends.close()
        assert not ends.hub._thread.is_alive()


def test_values_come_to_all_by_rank_whoever_came_first(ranks):
    ends = ranks(3)
    for rank in (2, 0, 1):
        ends.say(rank, kind="exchange", key='["a", 0]', value=f"of {rank}")

    answers = [ends.hear(rank, "values") for rank in range(3)]

    wanted = {"kind": "values", "key": '["a", 0]', "values": ["of 0", "of 1", "of 2"]}
    assert answers == [wanted] * 3


def test_exchanges_of_different_names_do_not_wait_for_each_other(ranks):
    ends = ranks(2)
    ends.say(0, kind="exchange", key='["a", 0]', value=1)
    for rank in range(2):
        ends.say(rank, kind="exchange", key='["b", 0]', value=rank)

    assert ends.hear(0, "values")["key"] == '["b", 0]'
    ends.say(1, kind="exchange", key='["a", 0]', value=2)
    assert ends.hear(0, "values")["values"] == [1, 2]


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


def test_what_is_no_message_counts_as_a_lost_rank(ranks):
    ends = ranks(2)
    ends.ends[1].sendall(b"GET / HTTP/1.1\r\n\r\n")

    assert "rank 1 (worker 1, h:1) is gone" in ends.hear(0, "failure")["text"]


def test_a_rank_that_leaves_in_good_order_is_not_lost(ranks):
    ends = ranks(2)
    send(ends.ends[1], BYE)
    ends.ends[1].close()

    kinds = [receive(ends.ends[0], SECONDS)["kind"] for _ in range(5)]

    assert set(kinds) == {"beat"}


def test_the_hub_ends_when_the_last_has_left(ranks):
    ends = ranks(2)
    for end in ends.ends:
        send(end, BYE)
        end.close()
    ends.hub.join(SECONDS)

    assert not ends.hub._thread.is_alive()


def test_a_rank_that_ends_with_an_error_is_reported_with_it(ranks):
    ends = ranks(2)
    send(ends.ends[1], {**BYE, "error": "ValueError: bad weather"})

    text = ends.hear(0, "failure")["text"]

    assert "rank 1 (worker 1, h:1) has ended with ValueError: bad weather." in text


def test_a_rank_that_cannot_finish_a_call_is_reported_with_the_reason(ranks):
    ends = ranks(2)
    ends.say(1, kind="error", text="InvalidArgumentError in step: NaN")

    text = ends.hear(0, "failure")["text"]

    assert "rank 1 (worker 1, h:1) has failed with InvalidArgumentError in" in text


def test_who_waits_for_the_value_of_a_rank_that_left_hears_of_it(ranks):
    ends = ranks(2)
    ends.say(0, kind="exchange", key='["barrier end", 0]', value=None)
    send(ends.ends[1], BYE)

    text = ends.hear(0, "failure")["text"]

    assert "has ended while others wait for it in barrier end" in text


def test_a_value_given_before_leaving_counts(ranks):
    ends = ranks(2)
    ends.say(1, kind="exchange", key='["a", 0]', value=1)
    send(ends.ends[1], BYE)
    ends.ends[1].close()
    ends.say(0, kind="exchange", key='["a", 0]', value=0)

    assert ends.hear(0, "values")["values"] == [0, 1]


def test_a_silent_rank_is_lost_and_one_that_left_is_not(ranks, monkeypatch):
    monkeypatch.setattr(hub_module, "SILENCE_SECONDS", 0.3)
    ends = ranks(3)
    send(ends.ends[2], BYE)
    failure = None
    while failure is None:
        ends.say(0, kind="beat", report=REPORT)
        message = receive(ends.ends[0], SECONDS)
        failure = message if message["kind"] == "failure" else None

    assert "rank 1 (worker 1, h:1) has been silent for 0 s" in failure["text"]


def test_ranks_that_wait_in_different_calls_all_hear_it(ranks):
    ends = ranks(2)
    for rank, what in enumerate(("all_reduce 'a'", "all_reduce 'b'")):
        report = {**REPORT, "call": 4, "what": what, "inside": True, "seconds": 5.0}
        ends.say(rank, kind="beat", report=report)

    for rank in range(2):
        failure = ends.hear(rank, "failure")
        assert failure["what"] == "disagree"
        assert "is in all_reduce 'a', rank 1" in failure["text"]


def test_a_rank_that_waits_too_long_is_a_stall(ranks):
    ends = ranks(2, timeout_seconds=30.0)
    report = {**REPORT, "call": 4, "inside": True, "seconds": 31.0}
    ends.say(0, kind="beat", report=report)

    assert ends.hear(1, "failure")["what"] == "stalled"


def test_the_first_failure_is_the_only_one(ranks):
    ends = ranks(3)
    ends.ends[1].close()
    first = ends.hear(0, "failure")
    ends.ends[2].close()

    kinds = [receive(ends.ends[0], SECONDS)["kind"] for _ in range(10)]

    assert "rank 1" in first["text"]
    assert set(kinds) == {"beat"}


def test_a_rank_that_takes_nothing_is_lost_to_the_others(monkeypatch, ranks):
    monkeypatch.setattr(hub_module, "_SEND_SECONDS", 1.0)
    ends = ranks(2)
    # More than the connection to rank 1 holds, which reads nothing.
    ends.hub._connections[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    large = "x" * 2**16
    ends.say(0, kind="exchange", key='["a", 0]', value=large)
    ends.say(1, kind="exchange", key='["a", 0]', value="")

    assert ends.hear(0, "values")["values"] == [large, ""]
    assert "rank 1" in ends.hear(0, "failure")["text"]


def test_a_rank_that_goes_while_it_takes_nothing_is_lost_to_the_others(monkeypatch):
    class Stuck(socket.socket):
        def sendall(self, data):
            raise TimeoutError

        def shutdown(self, how):
            raise OSError("Transport endpoint is not connected")

    monkeypatch.setattr(hub_module, "BEAT_SECONDS", 0.02)
    (one, its), (other, stuck) = socket.socketpair(), socket.socketpair()
    one.settimeout(SECONDS)
    connections = {0: its, 1: Stuck(fileno=stuck.detach())}
    hub = Hub(connections, {0: "rank 0", 1: "rank 1"}, 600.0)
    with one:
        assert receive(one, SECONDS)["kind"] == "beat"
        other.close()
        while (message := receive(one, SECONDS))["kind"] == "beat":
            pass
        assert "rank 1 is gone" in message["text"]
    hub.join(SECONDS)
    assert not hub._thread.is_alive()
