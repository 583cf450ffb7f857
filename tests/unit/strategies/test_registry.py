import json

import pytest

from tfdist.strategies import AllReduceStrategy, ParameterServerStrategy, create
from tfdist.strategies.registry import STRATEGIES


@pytest.mark.parametrize("name", ["auto", "all_reduce"])
def test_a_strategy_is_made_by_its_name(name):
    assert isinstance(create(name), AllReduceStrategy)


def test_the_environment_chooses_by_default():
    assert isinstance(create(), AllReduceStrategy)


def test_an_environment_with_servers_chooses_parameter_servers(monkeypatch):
    made = []
    monkeypatch.setitem(
        STRATEGIES, "parameter_server", (lambda **o: made.append(o), "noted")
    )
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps({"cluster": jobs, "task": {"type": "chief", "index": 0}}),
    )
    create(consistency="sync")

    assert made == [{"consistency": "sync"}]


def test_parameter_servers_have_a_name():
    assert STRATEGIES["parameter_server"][0] is ParameterServerStrategy


def test_options_reach_the_constructor():
    with pytest.raises(ValueError, match="bucket_bytes must not be negative"):
        create("all_reduce", bucket_bytes=-1)
    with pytest.raises(ValueError, match="op must be one of average, sum, adasum"):
        create("horovod", op="mean")
    with pytest.raises(ValueError, match="consistency must be one of async, bounded"):
        create("parameter_server", consistency="eventual")
    with pytest.raises(TypeError, match="consistency"):
        create("all_reduce", consistency="sync")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("allreduce", r"Did you mean 'all_reduce'\? Use 'auto' or one of: all_reduce"),
        ("xyz", r"\. Use 'auto' or one of: all_reduce"),
    ],
)
def test_an_unknown_name_is_refused(name, advice):
    with pytest.raises(
        ValueError,
        match=rf"There is no strategy of this name\. Received: name='{name}'.*{advice}",
    ):
        create(name)


def test_every_name_says_in_words_what_it_is():
    assert all(words and name.islower() for name, (_, words) in STRATEGIES.items())
