import pytest


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
