import pytest

from tfdist.cluster.detect import RESOLVERS, detect
from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.tf_config import dumps

TWO = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"), task=Task("worker", 1))
LAUNCHED = {
    "TF_CONFIG": dumps(TWO),
    "TFDIST_RUN_ID": "5f2c",
    "TFDIST_RANK": "1",
    "TFDIST_SIZE": "2",
}


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_nothing_described_is_a_process_alone(env):
    assert detect(env) == Cluster()


def test_tf_config_is_enough():
    assert detect({"TF_CONFIG": dumps(TWO)}) == TWO


def test_our_launcher_is_recognised_before_tf_config():
    assert detect(LAUNCHED) == TWO
    assert [resolver.name for resolver in RESOLVERS] == ["tfdist", "tf_config"]
    # TF_CONFIG alone would take this for worker 0.
    with pytest.raises(ValueError, match="not the one that `tfdist run` gave"):
        detect({**LAUNCHED, "TFDIST_RANK": "0"})


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", dumps(TWO))
    assert detect() == TWO
    assert detect({}) == Cluster()


def test_a_malformed_description_is_never_passed_over():
    with pytest.raises(ValueError, match=r"^TF_CONFIG has no \"cluster\""):
        detect({"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'})
    with pytest.raises(ValueError, match="^TFDIST_SIZE must be a whole number"):
        detect({**LAUNCHED, "TFDIST_SIZE": "two"})


@pytest.mark.parametrize("resolver", RESOLVERS, ids=lambda resolver: resolver.name)
def test_resolvers_only_read(resolver):
    env = dict(LAUNCHED)
    assert resolver.recognises(env)
    assert resolver.resolve(env) == resolver.resolve(env) == TWO
    assert env == LAUNCHED
    assert not resolver.recognises({})
