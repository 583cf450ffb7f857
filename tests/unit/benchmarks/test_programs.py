"""The program that measures the all-reduce, in this process."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.benchmarks import allreduce_program
from tfdist.benchmarks.allreduce_program import exchange


def test_both_sides_send_more_than_the_system_buffers():
    left, right = socket.socketpair()
    with left, right, ThreadPoolExecutor() as threads:
        for size in (4, 8 * 2**20, 4):
            other = threads.submit(exchange, right, bytes(size))
            exchange(left, bytes(size))
            other.result()
        with pytest.raises(BlockingIOError):
            left.recv(1)


def test_calls_alternate_and_warm_up_in_each_turn(seconds, turn):
    now = [0.0]

    def function(name, lasts):
        def call():
            turn.events.append(name)
            now[0] += lasts

        return call

    seconds(allreduce_program, iter(lambda: now[0], None))
    times = allreduce_program.time_sizes(
        turn,
        [4],
        12,
        lambda size: {"a": function("a", size / 8), "b": function("b", 2.0)},
    )

    assert times == [{"a": [0.5] * 12, "b": [2.0] * 12}]
    first = ["take", *(["a", "b", "b", "a"] * 6), "a", "b", "pass on"]
    rest = ["take", *(["b", "a", "a", "b"] * 2), "b", "a", "pass on"]
    assert turn.events == ["take", "pass on", *first, *rest]
