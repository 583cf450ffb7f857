import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize("inplace", [False, True])
def test_alone_variables_keep_their_values(hvd, inplace):
    variables = [keras.Variable(2.0), tf.Variable([3.0])]
    hvd.broadcast_variables(variables, 0, inplace=inplace)

    assert [float(variables[0]), float(variables[1][0])] == [2.0, 3.0]


def test_in_a_graph_they_are_broadcast_when_it_runs(hvd):
    variable = tf.Variable(2.0)
    tf.function(lambda: hvd.broadcast_variables([variable], 0))()

    assert float(variable) == 2.0


def test_global_variables_are_refused_with_what_to_write_instead(hvd):
    with pytest.raises(RuntimeError, match=r"broadcast_variables\(model.variables, 3"):
        hvd.broadcast_global_variables(3)
