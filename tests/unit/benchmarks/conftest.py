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
