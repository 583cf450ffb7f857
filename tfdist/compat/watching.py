"""Replacements in Keras and TensorFlow through which an observer sees a training."""

from typing import Any

import tensorflow as tf

from tfdist.observing import current_observer


# Not excluded from autograph, which in a custom loop converts layers, too.
def call_layer(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer."""
    result = original(layer, *args, **kwargs)
    current_observer().see_layer(layer)
    return result


@tf.autograph.experimental.do_not_convert
def apply(
    original: Any, self: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any
) -> Any:
    """Apply gradients to the variables of an optimizer."""
    observer = current_observer()
    observer.see_update(self, grads, [*(trainable_variables or ())])
    result = original(self, grads, trainable_variables, **kwargs)
    observer.see_updated()
    return result


# This covers optimizers that override `apply`.
@tf.autograph.experimental.do_not_convert
def apply_gradients(
    original: Any, self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
) -> Any:
    """Apply gradients to variables."""
    pairs, observer = [*grads_and_vars], current_observer()
    observer.see_update(
        self, [gradient for gradient, _ in pairs], [v for _, v in pairs]
    )
    result = original(self, pairs, *args, **kwargs)
    observer.see_updated()
    return result


def call_function(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a `tf.function`."""
    result = original(self, *args, **kwargs)
    current_observer().see_return()
    return result


def end_epoch(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """End an epoch in the callback that each `fit` has."""
    current_observer().see_epoch_end()
    original(self, *args, **kwargs)


def is_compiled(original: Any, model: Any) -> bool:
    """Return whether XLA compiles a model."""
    return bool(current_observer().allows_xla and original(model))
