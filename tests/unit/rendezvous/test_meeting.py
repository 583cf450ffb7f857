import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tfdist.liveness.lifeline import monitor
from tfdist.rendezvous import handshake
from tfdist.rendezvous.roll_call import Guest, meet, open_door

SECONDS = 120


class Meeting:
    """Ranks 5, 6, ... of a job in threads; `guests` is what they know of each other."""

    def __init__(self, stack, size):
        self._pool = stack.enter_context(ThreadPoolExecutor(size))
        self.door, self.token = open_door(is_local=True)
        self.port = self.door.getsockname()[1]
        stack.enter_context(self.door)
        self.guests = [
            Guest(5, "here", 70, ("127.0.0.1",), self.port, self.token),
            *(Guest(5 + rank, "there", 70 + rank) for rank in range(1, size)),
        ]
        self.failures = []
        self.coming = []

    def comes(self, rank, seconds=SECONDS, **of_chief):
        """Let a rank come; `of_chief` is what it has been told wrongly of rank 0."""
        chief = self.guests[0].__dict__ | of_chief
        self.coming.append(
            self._pool.submit(
                self._come, rank, [Guest(**chief), *self.guests[1:]], seconds
            )
        )
        return self.coming[-1]

    def _come(self, rank, guests, seconds):
        door = None if rank else self.door
        met = meet(rank, guests, door, start_timeout_seconds=seconds)
        return monitor(met, self.failures.append, SECONDS)

    def end(self):
        for future in self.coming:
            if future.exception(2 * SECONDS) is None:
                future.result().close()


@pytest.fixture
def of_ranks():
    """Prepare the meeting of so many ranks."""
    with ExitStack() as stack:

        def prepare(size):
            prepared = Meeting(stack, size)
            stack.callback(prepared.end)
            return prepared

        yield prepare


def joined(futures):
    """Return the lifelines of ranks that are all there, after one exchange."""
    lines = [future.result(SECONDS) for future in futures]
    with ThreadPoolExecutor() as pool:
        values = [pool.submit(line.exchange, "x", n) for n, line in enumerate(lines)]
        assert [value.result(SECONDS) for value in values] == [[*range(len(lines))]] * (
            len(lines)
        )
    return lines


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_that_know_of_each_other_are_connected(of_ranks, size):
    ranks = of_ranks(size)
    futures = [ranks.comes(rank) for rank in range(size)]

    joined(futures)


def test_ranks_part_when_the_last_of_them_is_ready(of_ranks, monkeypatch):
    monkeypatch.setattr("tfdist.liveness.lifeline._FAREWELL_SECONDS", SECONDS)
    ranks = of_ranks(2)
    futures = [ranks.comes(rank) for rank in range(2)]
    hub = joined(futures)[0]._hub

    with ThreadPoolExecutor() as pool:
        for parting in [pool.submit(future.result().leave) for future in futures]:
            parting.result(SECONDS)

    assert not hub._thread.is_alive()
    assert ranks.failures == []


def test_a_rank_that_has_failed_waits_for_nobody_and_says_why(of_ranks, monkeypatch):
    ranks = of_ranks(2)
    lines = joined([ranks.comes(rank) for rank in range(2)])
    monkeypatch.setattr(sys, "last_value", OSError("No."), raising=False)

    lines[1].leave()

    with pytest.raises(
        ConnectionError,
        match=r"rank 6 \(process 71 on there\) has ended with OSError: No\. Look at",
    ):
        lines[0].exchange("more", None)


def test_a_rank_zero_that_cannot_be_reached_is_named_with_the_reasons(of_ranks):
    future = of_ranks(2).comes(
        1, seconds=0.5, addresses=("127.0.0.1", "127.0.0.2"), port=9
    )

    with pytest.raises(
        TimeoutError,
        match=r"rank 5 \(process 70 on here\) has not answered the roll-call after "
        r"0\.5 s: 127\.0\.0\.1: .*refused; 127\.0\.0\.2: .*refused\. Present: rank 6 "
        r"\(process 71 on there\); .* Let all hosts reach here by TCP, on any port\.",
    ):
        future.result(SECONDS)


def test_a_rank_of_another_meeting_is_not_let_in(of_ranks):
    ranks = of_ranks(2)
    chief = ranks.comes(0)
    stranger = ranks.comes(1, seconds=0.5, token="another")

    with pytest.raises(TimeoutError, match="0.5 s: another run answers there"):
        stranger.result(SECONDS)

    joined([chief, ranks.comes(1)])


def test_an_address_at_which_nothing_is_said_is_left_soon(of_ranks, monkeypatch):
    monkeypatch.setattr(handshake, "_ACKNOWLEDGE_SECONDS", 0.1)
    ranks = of_ranks(2)
    with socket.create_server(("127.0.0.2", ranks.port)):
        addresses = ("127.0.0.2", "127.0.0.1")

        joined([ranks.comes(0), ranks.comes(1, addresses=addresses)])


def test_a_rank_that_had_to_wait_too_long_may_come_again(of_ranks):
    """Its first connection is still in the queue when rank 0 gets to it."""
    ranks = of_ranks(2)
    socket.create_connection(("127.0.0.1", ranks.port), timeout=SECONDS).close()

    joined([ranks.comes(0), ranks.comes(1)])
