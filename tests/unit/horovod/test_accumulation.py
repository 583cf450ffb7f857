import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize("is_eager", [True, False])
def test_every_third_pass_updates_with_the_sum(hvd, is_eager):
    from tfdist.horovod.wrapped_optimizer import Accumulation

    accumulation = Accumulation(3)
    x, unused = keras.Variable([0.0, 0.0]), keras.Variable(0.0)
    skipped = tf.Variable(0)

    def make_pass(gradient):
        accumulation.add(
            [gradient, None],
            [x, unused],
            lambda sums: x.assign(sums[0]),
            lambda: skipped.assign_add(1),
        )

    if not is_eager:
        make_pass = tf.function(make_pass)
    seen = []
    for number in range(7):
        make_pass(tf.constant([1.0, float(number)]))
        seen.append(x.numpy().tolist())

    assert seen == [[0, 0]] * 2 + [[3, 3]] * 3 + [[3, 12]] * 2
    assert skipped.numpy() == 5
    assert accumulation.counter.numpy() == 1


@pytest.mark.parametrize("is_eager", [True, False])
def test_after_a_reset_a_step_begins_anew(hvd, is_eager):
    from tfdist.horovod.wrapped_optimizer import Accumulation

    accumulation, x = Accumulation(2), keras.Variable(0.0)

    def make_pass(gradient):
        accumulation.add([gradient], [x], lambda sums: x.assign(sums[0]), lambda: None)

    if not is_eager:
        make_pass = tf.function(make_pass)
    make_pass(tf.constant(5.0))
    accumulation.reset()
    make_pass(tf.constant(1.0))
    assert float(x) == 0.0
    make_pass(tf.constant(2.0))

    assert float(x) == 3.0


def test_an_update_that_fails_is_made_again(hvd):
    from tfdist.horovod.wrapped_optimizer import Accumulation

    accumulation, x = Accumulation(2), keras.Variable(0.0)
    updates = []

    def update(sums):
        updates.append(float(sums[0]))
        if len(updates) == 1:
            raise OSError("a rank has gone")

    make_pass = lambda: accumulation.add([tf.ones([])], [x], update, lambda: None)  # noqa: E731
    make_pass()
    with pytest.raises(OSError, match="a rank has gone"):
        make_pass()
    make_pass()

    assert updates == [2.0, 3.0]
    assert accumulation.counter.numpy() == 0
