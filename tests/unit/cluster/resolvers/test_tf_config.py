import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers import TFConfigResolver
from tfdist.cluster.tf_config import dumps

TWO = Cluster(chief="a:1", workers=("b:1",), task=Task("worker", 0))


@pytest.mark.parametrize("value", ["{}", "nonsense", dumps(TWO)])
def test_any_value_is_recognised(value):
    assert TFConfigResolver().recognises({"TF_CONFIG": value})


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " \n"}])
def test_an_empty_variable_counts_as_not_set(env):
    assert not TFConfigResolver().recognises(env)


def test_the_cluster_is_read():
    assert TFConfigResolver().resolve({"TF_CONFIG": dumps(TWO)}) == TWO


def test_a_malformed_value_is_an_error():
    with pytest.raises(ValueError, match="^TF_CONFIG is not valid JSON at line 1"):
        TFConfigResolver().resolve({"TF_CONFIG": "nonsense"})
