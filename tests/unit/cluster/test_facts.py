import json

import pytest

import tfdist
from tfdist.cluster import facts

FOUR_ON_TWO_HOSTS = ["a:1", "b:1", "a:2", "b:2"]


@pytest.fixture
def task(monkeypatch):
    def set_task(index, task_type="worker", **jobs):
        cluster = {"worker": FOUR_ON_TWO_HOSTS, **jobs}
        task = {"type": task_type, "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))

    return set_task


def test_a_process_alone_is_the_chief_of_one():
    assert facts.rank() == 0
    assert facts.size() == 1
    assert facts.local_rank() == 0
    assert facts.local_size() == 1
    assert facts.is_chief() is True


@pytest.mark.parametrize(
    ("index", "local_rank", "is_chief"),
    [(0, 0, True), (1, 0, False), (2, 1, False), (3, 1, False)],
)
def test_facts_follow_tf_config(task, index, local_rank, is_chief):
    task(index)

    assert facts.rank() == index
    assert facts.size() == 4
    assert facts.local_rank() == local_rank
    assert facts.local_size() == 2
    assert facts.is_chief() is is_chief


def test_the_environment_is_read_at_every_call(task):
    task(1)
    assert facts.rank() == 1
    task(2)
    assert facts.rank() == 2


def test_a_parameter_server_has_no_rank_but_sees_the_size(task):
    task(0, "ps", ps=["c:1"])

    assert facts.size() == 4
    assert facts.is_chief() is False
    with pytest.raises(ValueError, match="rank"):
        facts.rank()


def test_facts_follow_a_launcher_that_tells_no_addresses(monkeypatch):
    for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", str(value))

    assert facts.rank() == 3
    assert facts.size() == 4
    assert facts.local_rank() == 1
    assert facts.local_size() == 2
    assert facts.is_chief() is False


@pytest.mark.parametrize(
    "name", ["rank", "size", "local_rank", "local_size", "is_chief"]
)
def test_the_facts_are_public(name):
    assert getattr(tfdist, name) is getattr(facts, name)
