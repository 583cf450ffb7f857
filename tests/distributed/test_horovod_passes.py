"""What `DistributedOptimizer` does with several passes, overflows and local variables.

One job of two ranks makes all checks and returns what was seen; the tests compare it
with numbers worked out by hand.
"""

import numpy as np
import pytest
from horovod_jobs import run

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]

PASSES, STEPS = 4, 10
# Whether the sum of passes is averaged, and one variable is local.
CASES = [(False, False), (True, True)]
SCALERS = ["keras around", "tfdist around", "keras inside", "tfdist inside"]


def adder():
    """Return an optimizer that adds the gradient to the variable."""
    import keras

    class Adder(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_add(variable, gradient)

    return Adder(1.0)


def passes(hvd, average, is_local):
    """Make ten passes, whose gradients are 1 + rank, and 2 + rank of a row of two."""
    import keras
    import tensorflow as tf

    optimizer = hvd.DistributedOptimizer(
        adder(),
        backward_passes_per_step=PASSES,
        average_aggregated_gradients=average,
        sparse_as_dense=True,
    )
    x, y = keras.Variable(np.zeros(1)), keras.Variable(np.array([1.0, 2.0]))
    if is_local:
        optimizer.register_local_var(x)

    @tf.function
    def make_pass():
        one = tf.constant([1.0 + hvd.rank()])
        two = tf.IndexedSlices(one + 1.0, tf.constant([0]), tf.constant([2]))
        optimizer.apply_gradients([(one, x), (two, y)])

    seen = []
    for _ in range(STEPS):
        make_pass()
        seen.append((float(x[0]), *np.array(y).tolist(), int(optimizer.iterations)))
    return seen


def wrapped_scaler(hvd, kind, **options):
    """Return an optimizer with loss scaling, around a distributed one or inside."""
    import keras

    import tfdist

    scalers = {
        "keras": keras.optimizers.LossScaleOptimizer,
        "tfdist": tfdist.mixed_precision.LossScaleOptimizer,
    }
    whose, where = kind.split()
    make = scalers[whose]
    if where == "inside":
        inner = make(keras.optimizers.SGD(1.0), initial_scale=8.0)
        return hvd.DistributedOptimizer(inner, **options)
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    return make(inner, initial_scale=8.0)


def overflow_on_one_rank(hvd, kind, is_eager, **options):
    """Return the weight and the scale after each pass; rank 1 overflows in pass 2."""
    import keras
    import tensorflow as tf

    optimizer, x = wrapped_scaler(hvd, kind, **options), keras.Variable(0.0)
    apply = lambda gradient: optimizer.apply([gradient], [x])  # noqa: E731
    if not is_eager:
        apply = tf.function(apply)
    seen = []
    for number in range(4):
        overflows = number == 1 and hvd.rank() == 1
        scale = float(optimizer.dynamic_scale) if optimizer.built else 8.0
        apply(tf.constant(np.inf if overflows else scale * (1 + 2 * hvd.rank())))
        seen.append((float(x), float(optimizer.dynamic_scale)))
    return seen


def partial(hvd, scale_local_gradients):
    """Return the sums of a local layer's and a shared layer's updates."""
    import keras

    model = keras.Sequential(
        [keras.Input((1,)), *(keras.layers.Dense(1, use_bias=False) for _ in "ab")]
    )
    optimizer = hvd.PartialDistributedOptimizer(
        adder(),
        local_layers=model.layers[0],
        scale_local_gradients=scale_local_gradients,
    )
    model.set_weights([np.zeros((1, 1)), np.zeros((1, 1))])
    gradient = np.full((1, 1), 1.0 + hvd.rank())
    optimizer.apply([gradient, gradient], model.trainable_variables)
    return [float(np.sum(weight)) for weight in model.get_weights()]


def see_all():
    import tfdist.horovod as hvd

    hvd.init()
    return {
        "passes": {
            (average, is_local): passes(hvd, average, is_local)
            for average, is_local in CASES
        },
        "overflow on one rank": {
            kind: overflow_on_one_rank(hvd, kind, is_eager="keras" in kind)
            for kind in SCALERS
        },
        "overflow on one rank in one pass of two": {
            kind: overflow_on_one_rank(hvd, kind, False, backward_passes_per_step=2)
            for kind in SCALERS
        },
        "partial": {scale: partial(hvd, scale) for scale in (True, False)},
    }


@pytest.fixture(scope="module")
def by_rank():
    return run(see_all, timeout_seconds=1200)


@pytest.mark.parametrize(("average", "is_local"), CASES)
def test_gradients_of_passes_are_added_and_applied_once(by_rank, average, is_local):
    for rank, seen in enumerate(by_rank):
        # The mean over ranks of 1 + rank; what is local is divided by two ranks.
        x_step = (1.0 + rank) / 2 if is_local else 1.5
        factor = 1 if average else PASSES
        assert seen["passes"][average, is_local] == [
            (x_step * factor * updates, 1.0 + 2.5 * factor * updates, 2.0, done)
            for done in range(1, STEPS + 1)
            for updates in [done // PASSES]
        ]


@pytest.mark.parametrize("kind", SCALERS)
def test_all_ranks_skip_a_step_that_overflows_on_one(by_rank, kind):
    for seen in by_rank:
        # The mean over ranks of 1 and 3 is 2; the second step is skipped.
        assert seen["overflow on one rank"][kind] == [
            (-2.0, 8.0),
            (-2.0, 4.0),
            (-4.0, 4.0),
            (-6.0, 4.0),
        ]


@pytest.mark.parametrize("kind", SCALERS)
def test_a_pass_that_overflows_costs_the_step_it_belongs_to(by_rank, kind):
    for seen in by_rank:
        assert seen["overflow on one rank in one pass of two"][kind] == [
            (0.0, 8.0),
            (0.0, 4.0),
            (0.0, 4.0),
            (-4.0, 4.0),
        ]


def test_local_layers_keep_their_own_gradients(by_rank):
    assert [seen["partial"][True] for seen in by_rank] == [[0.5, 1.5], [1.0, 1.5]]
    assert [seen["partial"][False] for seen in by_rank] == [[1.0, 1.5], [2.0, 1.5]]
