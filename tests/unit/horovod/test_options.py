"""Arguments of wrapped optimizers and tapes that are refused."""

import types

import keras
import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": "Max"}, "^op must be Average, Sum or Adasum"),
        ({"op": "Adasum", "groups": 2}, "^Adasum goes without groups"),
        ({"op": "Sum", "gradient_predivide_factor": 2.0}, "goes with op=Average only"),
        ({"gradient_predivide_factor": 0.0}, "^gradient_predivide_factor must be pos"),
        ({"groups": 0}, "^groups must be a positive number, or a list of lists"),
        ({"groups": [1, 2]}, "^groups must be a positive number"),
        ({"backward_passes_per_step": 1.5}, "^backward_passes_per_step must be a pos"),
        ({"process_set": [0]}, "^process_set must be a ProcessSet that Horovod knows"),
        ({"compression": "fp16"}, "^compression must be Compression.none or"),
        ({"local_layers": [1]}, "^local_layers must be Keras layers that have been"),
        ({"local_layers": keras.layers.Dense(1)}, "^local_layers .* been built.*Build"),
    ],
    ids=str,
)
def test_options_that_cannot_be_honoured_are_refused(hvd, options, text):
    if "op" in options:
        options = options | {"op": getattr(hvd, options["op"])}
    is_partial = "local_layers" in options
    wrap = hvd.PartialDistributedOptimizer if is_partial else hvd.DistributedOptimizer
    with pytest.raises(ValueError, match=text):
        wrap(keras.optimizers.SGD(), **options)


def test_a_tape_checks_its_options_too(hvd):
    with pytest.raises(ValueError, match="op must be Average, Sum or Adasum"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Max)
    with pytest.raises(ValueError, match="local_layers must be Keras layers that have"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=3)


@pytest.mark.parametrize(
    "option", [{"gradient_accumulation_steps": 2}, {"use_ema": True}], ids=str
)
def test_passes_do_not_go_with_what_counts_steps(hvd, option):
    with pytest.raises(ValueError, match=f"does not go with {next(iter(option))}"):
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(**option), backward_passes_per_step=2
        )


def test_only_plain_optimizers_of_keras_3_can_be_wrapped(hvd):
    with pytest.raises(TypeError, match="optimizer must be an optimizer of Keras 3"):
        hvd.DistributedOptimizer("sgd")
    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD())
    for twice in (wrapped, keras.optimizers.LossScaleOptimizer(wrapped)):
        with pytest.raises(ValueError, match="must not be wrapped twice"):
            hvd.DistributedOptimizer(twice)


def test_what_has_the_functions_of_a_compression_is_one(hvd):
    own = types.SimpleNamespace(compress=None, decompress=None)

    assert hvd.DistributedOptimizer(keras.optimizers.SGD(), compression=own)
