import types

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


def sgd(**options):
    return keras.optimizers.SGD(0.1, **options)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_ops_that_make_no_gradients_are_refused(hvd, op):
    with pytest.raises(ValueError, match="op must be Average, Sum or Adasum"):
        hvd.DistributedOptimizer(sgd(), op=getattr(hvd, op))


@pytest.mark.parametrize(
    ("size", "mpi_enabled", "talk"),
    [
        (2, False, "2 ranks that talk through Gloo"),
        (3, True, "3 ranks that talk through MPI"),
    ],
)
def test_adasum_is_refused_where_it_cannot_work(
    hvd, monkeypatch, size, mpi_enabled, talk
):
    from tfdist.horovod import options

    monkeypatch.setattr(options.native, "size", lambda: size)
    monkeypatch.setattr(options.native, "mpi_enabled", lambda: mpi_enabled)
    with pytest.raises(RuntimeError, match=talk):
        hvd.DistributedOptimizer(sgd(), op=hvd.Adasum)


def test_adasum_is_refused_with_groups(hvd):
    with pytest.raises(ValueError, match="Adasum goes without groups"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Adasum, groups=2)


@pytest.mark.parametrize(("factor", "op"), [(2.0, "Sum"), (0.0, "Average")])
def test_predivision_that_means_nothing_is_refused(hvd, factor, op):
    options = {"gradient_predivide_factor": factor, "op": getattr(hvd, op)}
    with pytest.raises(ValueError, match="must be positive, goes with op=Average only"):
        hvd.DistributedOptimizer(sgd(), **options)


@pytest.mark.parametrize("groups", [0, -1, "ab", [1, 2]])
def test_groups_that_are_none_are_refused(hvd, groups):
    with pytest.raises(ValueError, match="groups must be a positive number, or a list"):
        hvd.DistributedOptimizer(sgd(), groups=groups)


def test_the_old_name_of_groups_is_still_taken(hvd):
    with pytest.warns(DeprecationWarning, match="Write groups=3"):
        optimizer = hvd.DistributedOptimizer(sgd(), num_groups=3)

    assert optimizer.reduction.options.groups == 3


@pytest.mark.parametrize("passes", [0, -1, 1.5])
def test_passes_are_a_positive_number(hvd, passes):
    with pytest.raises(ValueError, match="backward_passes_per_step must be a positive"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=passes)


@pytest.mark.parametrize(
    "option", [{"gradient_accumulation_steps": 2}, {"use_ema": True}], ids=str
)
def test_passes_do_not_go_with_what_counts_steps(hvd, option):
    with pytest.raises(ValueError, match=f"does not go with {next(iter(option))}"):
        hvd.DistributedOptimizer(sgd(**option), backward_passes_per_step=2)


@pytest.mark.parametrize("optimizer", ["sgd", None, tf.compat.v1.train.Optimizer])
def test_only_optimizers_of_keras_3_can_be_wrapped(hvd, optimizer):
    with pytest.raises(TypeError, match="optimizer must be an optimizer of Keras 3"):
        hvd.DistributedOptimizer(optimizer)


def test_nothing_is_wrapped_twice(hvd):
    wrapped = hvd.DistributedOptimizer(sgd())
    for twice in (wrapped, keras.optimizers.LossScaleOptimizer(wrapped)):
        with pytest.raises(ValueError, match="must not be wrapped twice"):
            hvd.DistributedOptimizer(twice)


def test_a_process_set_must_be_known(hvd):
    with pytest.raises(ValueError, match="process_set must be known to Horovod"):
        hvd.DistributedOptimizer(sgd(), process_set=hvd.ProcessSet([0]))


def test_compression_must_compress(hvd):
    with pytest.raises(ValueError, match="compression must be Compression.none or"):
        hvd.DistributedOptimizer(sgd(), compression="fp16")
    own = types.SimpleNamespace(compress=None, decompress=None)
    assert hvd.DistributedOptimizer(sgd(), compression=own)


@pytest.mark.parametrize("name", ["device_dense", "device_sparse"])
def test_a_device_must_exist(hvd, name):
    with pytest.raises(ValueError, match=f"{name} must be a device that this process"):
        hvd.DistributedOptimizer(sgd(), **{name: "/gpu:7"})


@pytest.mark.parametrize("layers", ["dense", [1], 2, keras.layers.Dense(1)], ids=str)
def test_local_layers_must_be_layers_with_variables(hvd, layers):
    with pytest.raises(ValueError, match="local_layers must be Keras layers that have"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=layers)
