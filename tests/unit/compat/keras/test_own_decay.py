import keras

from tfdist.compat.keras.own_decay import OwnDecayOptimizer


class Steady(OwnDecayOptimizer):
    """Subtracts the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient)


def variables():
    return [keras.Variable([1.0], name=name) for name in ("kernel", "bias")]


def test_keras_s_own_decay_is_left_out():
    kernel, bias = variables()
    optimizer = Steady(0.1, weight_decay=0.5)
    optimizer.apply([keras.ops.ones(1) * 0.25] * 2, [kernel, bias])

    assert [float(v[0]) for v in (kernel, bias)] == [0.75, 0.75]
    assert optimizer.weight_decay == 0.5


def test_variables_have_their_numbers_and_can_be_excluded():
    kernel, bias = variables()
    optimizer = Steady(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build([kernel, bias])

    assert [optimizer.index_of(v) for v in (kernel, bias)] == [0, 1]
    assert [optimizer.is_decayed(v) for v in (kernel, bias)] == [True, False]
