"""The rank that is measured, which takes a GPU as one of several on its host."""

import pytest

from tfdist.estimate import child
from tfdist.estimate.child import Meter


@pytest.fixture
def replaced(monkeypatch):
    """Patch nothing; return what would be replaced, by name."""
    replaced = {}

    def replace(owner, name, value):
        replaced[name] = value

    for name in ("watch_run", "watch_updates", "watch_functions", "watch_fits"):
        monkeypatch.setattr(child.watching, name, lambda *given: None)
    monkeypatch.setattr(child.watching, "replace", replace)
    return replaced


def test_a_rank_takes_the_gpu_of_its_place_on_this_host(replaced, monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "a:2", "a:3"]},'
        ' "task": {"type": "worker", "index": 1}}',
    )
    places = []
    monkeypatch.setattr(child, "pin", lambda *place: places.append(place))
    # Of three ranks, a host has two.
    Meter(engine="tensorflow", ranks=3, processes=2, steps=2, folder="").install()
    collective = replaced["connect"]("auto")

    assert places == [(1, 2)]
    assert (collective.rank, collective.size) == (1, 3)
