"""Which calls are timed, and which only warm up."""

import pytest

from tfdist.benchmarks import calls
from tfdist.benchmarks.calls import time_sizes


class Machine:
    """Notes turns and calls; each call takes as long as its name says."""

    def __init__(self):
        self.events = []
        self.now = 0.0

    def take(self):
        self.events.append("take")

    def pass_on(self):
        self.events.append("pass on")

    def way(self, name, seconds):
        def call():
            self.events.append(name)
            self.now += seconds

        return call


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(calls, "perf_counter", lambda: machine.now)
    return machine


def test_the_ways_go_forwards_and_backwards_and_warm_up_in_each_turn(machine):
    ways = {"a": machine.way("a", 0.5), "b": machine.way("b", 2.0)}

    times = time_sizes(machine, [4], 12, lambda size: ways)

    assert times == [{"a": [0.5] * 12, "b": [2.0] * 12}]
    turn = ["take", *(["a", "b", "b", "a"] * 6), "a", "b", "pass on"]
    rest = ["take", *(["b", "a", "a", "b"] * 2), "b", "a", "pass on"]
    assert machine.events == ["take", "pass on", *turn, *rest]


def test_each_size_has_ways_of_its_own(machine):
    times = time_sizes(
        machine, [4, 8], 1, lambda size: {"way": machine.way("way", float(size))}
    )

    assert times == [{"way": [4.0]}, {"way": [8.0]}]
