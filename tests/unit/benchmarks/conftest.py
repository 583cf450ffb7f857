import json
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


class NotedTurn:
    """Always has the turn; `events` says when it was taken and passed on."""

    def __init__(self):
        self.events = []

    def take(self):
        self.events.append("take")

    def pass_on(self):
        self.events.append("pass on")


@pytest.fixture
def turn():
    return NotedTurn()


@pytest.fixture
def script(monkeypatch):
    """Return the function that imports a script of the folder benchmarks/."""
    monkeypatch.syspath_prepend(FOLDER)
    return import_module


@pytest.fixture
def ordered(monkeypatch, tmp_path):
    """Return the function that gives this process its orders."""

    def order(port, process, **more):
        orders = {
            "port": port,
            "group": 0,
            "folder": str(tmp_path),
            "is_stopped": False,
            "process": process,
            "settings": {"steps": 3},
            **more,
        }
        monkeypatch.setattr(sys, "argv", ["program", json.dumps(orders)])

    return order


@pytest.fixture
def seconds(monkeypatch):
    """Return what gives the clock of a module its readings."""

    def give(module, readings):
        clock = iter(readings)
        monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
        return clock

    return give


@pytest.fixture
def is_soon():
    """Return what waits until the kernel has a process in a state, such as "T"."""

    def is_soon(state, pid):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            # It stands behind the name, which is in parentheses.
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
            if status.split()[0] == state:
                return True
        return False

    return is_soon
