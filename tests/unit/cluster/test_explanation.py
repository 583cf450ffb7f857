import json

import pytest

from tfdist.cluster import detect, explanation
from tfdist.cluster.explanation import explain, tf_config_here
from tfdist.cluster.place import Place

TF_CONFIG = json.dumps(
    {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
)
OF_TFDIST = {"TFDIST_RUN_ID": "5f2c", "TFDIST_RANK": "1", "TFDIST_SIZE": "2"}
OF_MPI = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "1",
}


def test_nothing_describes_a_cluster():
    found = explain({"PATH": "/bin"})

    assert (found.resolver, found.launcher, found.variables) == ("", "", ())
    assert found.cluster == detect({})
    assert found.place == Place()


def test_tf_config_says_so():
    found = explain({"PATH": "/bin", "TF_CONFIG": TF_CONFIG})

    assert found.cluster.rank == 1
    assert (found.resolver, found.launcher) == ("tf_config", "TF_CONFIG")
    assert found.variables == ("TF_CONFIG",)
    assert found.others == ()


def test_our_launcher_comes_before_the_tf_config_that_it_sets():
    found = explain({"TF_CONFIG": TF_CONFIG, **OF_TFDIST})

    assert (found.resolver, found.launcher) == ("tfdist", "tfdist run")
    assert set(found.variables) == {"TF_CONFIG", *OF_TFDIST}
    assert "tf_config" in found.others


def test_a_launcher_that_tells_no_addresses():
    found = explain(OF_MPI)

    assert (found.resolver, found.launcher) == ("", "mpirun")
    assert (found.place.rank, found.place.size) == (1, 2)
    assert not found.cluster.jobs


def test_a_wrong_one_is_an_error():
    with pytest.raises(ValueError, match="^TF_CONFIG is not valid JSON"):
        explain({"TF_CONFIG": "{"})


def test_the_environment_of_this_process(monkeypatch):
    monkeypatch.setattr(explanation.os, "environ", {"TF_CONFIG": TF_CONFIG})

    assert tf_config_here() == TF_CONFIG
    assert explain().cluster.size == 2


def test_a_variable_that_is_not_set():
    assert tf_config_here({}) is None
    assert tf_config_here({"TF_CONFIG": ""}) == ""


def test_a_resolver_may_ask_for_all_variables(monkeypatch):
    class Counting:
        name = launcher = "counting"

        def recognises(self, env):
            return len(env) == 2 and "B" in [*env]

        def resolve(self, env):
            assert env["B"]
            return detect({})

    monkeypatch.setattr(explanation, "RESOLVERS", (Counting(),))

    assert explain({"A": "1", "B": "2"}).variables == ("B",)
