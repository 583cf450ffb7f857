import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def test_alone_every_value_stays_what_it_is(hvd):
    value = np.array([[1.0, 2.0]])
    for result in (
        hvd.allreduce(value),
        hvd.allgather(value),
        hvd.broadcast(value, 0),
        hvd.reducescatter(value),
        hvd.alltoall(value),
        hvd.grouped_allreduce([value])[0],
    ):
        assert result.numpy().tolist() == value.tolist()
    assert hvd.allgather_object("x") == ["x"]
    assert hvd.broadcast_object("x") == "x"


@pytest.mark.parametrize(
    "dtype", [tf.bfloat16, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32, tf.int64]
)
def test_types_that_horovod_does_not_know_are_reduced(hvd, dtype):
    value = tf.cast([1, 2], dtype)

    for reduce in (hvd.allreduce, hvd.reducescatter):
        result = reduce(value, op=hvd.Sum)
        assert result.dtype == dtype
        assert tf.cast(result, tf.int32).numpy().tolist() == [1, 2]


def test_options_of_horovod_tensorflow_are_taken(hvd):
    of_all = {"process_set": hvd.global_process_set, "ignore_name_scope": True}
    for call, more in (
        (hvd.allreduce, {"device_dense": "/cpu:0", "device_sparse": "/cpu:0"}),
        (hvd.allgather, {}),
        (lambda value, **options: hvd.broadcast(value, 0, **options), {}),
        (hvd.reducescatter, {"device_dense": "/cpu:0", "prescale_factor": 1.0}),
    ):
        assert call([1.0, 2.0], **more, **of_all).numpy().tolist() == [1.0, 2.0]
        with pytest.raises(TypeError, match="unexpected keyword argument 'devices'"):
            call([1.0], devices=1)
    with pytest.raises(ValueError, match="op parameter supersedes average"):
        hvd.allreduce([1.0], False, op=hvd.Sum)


@pytest.mark.parametrize("value", [True, "text", 1j, tf.constant(1, tf.uint64)])
def test_what_cannot_be_reduced_is_refused(hvd, value):
    for reduce in (hvd.allreduce, hvd.reducescatter):
        with pytest.raises(
            TypeError, match=r"^value must be of floats, or of .* Received: .* Cast it"
        ):
            reduce([value])


def test_a_part_is_of_the_rows_of_a_sum(hvd):
    for value, op in (([1.0], hvd.Min), (1.0, hvd.Sum)):
        with pytest.raises(ValueError, match=r"^reducescatter needs .*Use allreduce"):
            hvd.reducescatter(value, op=op)
