"""Patches for `tfdist verify` and `tfdist estimate`, which observe a training."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfdist.compat.patching import wrap

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unseen(function: _Function) -> _Function:
    """Exclude a function, and all functions that it calls, from autograph."""
    marked: _Function = tf.autograph.experimental.do_not_convert(function)
    return marked


def replace(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of a class or module."""
    setattr(owner, name, value)


def watch_run(
    strategy: type, begin: Callable[[Any, Any], None], end: Callable[[], None]
) -> None:
    """Call `begin` and `end` around each step that a strategy class runs."""

    # No `do_not_convert` here: autograph must convert `fn`.
    def run(
        original: Any, self: Any, fn: Any, args: Any = (), *further: Any, **options: Any
    ) -> Any:
        begin(fn, args)
        result = original(self, fn, args, *further, **options)
        end()
        return result

    wrap(strategy, "run", run)


def watch_layers(leave: Callable[[Any, Any], None]) -> None:
    """Call `leave(layer, outputs)` after each layer call."""

    # No `do_not_convert` here: in a custom loop autograph converts layers, too.
    def call(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(layer, *args, **kwargs)
        leave(layer, result)
        return result

    wrap(keras.layers.Layer, "__call__", call)


def watch_updates(see: Callable[[Any, Any, list[Any]], None]) -> None:
    """Call `see(optimizer, gradients, variables)` before each update."""

    @unseen
    def apply(
        original: Any,
        self: Any,
        grads: Any,
        trainable_variables: Any = None,
        **kwargs: Any,
    ) -> Any:
        see(self, grads, [*(trainable_variables or ())])
        return original(self, grads, trainable_variables, **kwargs)

    # This covers optimizers that override `apply`.
    @unseen
    def apply_gradients(
        original: Any, self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = [*grads_and_vars]
        see(self, [gradient for gradient, _ in pairs], [v for _, v in pairs])
        return original(self, pairs, *args, **kwargs)

    wrap(keras.optimizers.Optimizer, "apply", apply)
    if "apply" in vars(keras.optimizers.LossScaleOptimizer):
        wrap(keras.optimizers.LossScaleOptimizer, "apply", apply)
    wrap(keras.optimizers.Optimizer, "apply_gradients", apply_gradients)


def watch_functions(after: Callable[[], None]) -> None:
    """Call `after` when a `tf.function` returns to its caller."""

    def call(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        after()
        return result

    wrap(type(tf.function(lambda: None)), "__call__", call)


def watch_fits(
    begin: Callable[[int | None], None], end_epoch: Callable[[], None]
) -> None:
    """Call a function before each `fit`, and one at the end of each epoch.

    The first gets the steps of an epoch, None if unknown.
    """

    def set_params(original: Any, self: Any, params: Any) -> None:
        begin((params or {}).get("steps"))
        original(self, params)

    def on_epoch_end(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        end_epoch()
        original(self, *args, **kwargs)

    # Each `fit` has this callback.
    wrap(keras.callbacks.History, "set_params", set_params)
    wrap(keras.callbacks.History, "on_epoch_end", on_epoch_end)


def switch_jit_off() -> None:
    """Compile models without XLA, because XLA code cannot be observed."""
    off = property(lambda model: False, lambda model, value: None)
    replace(keras.Model, "jit_compile", off)


def compile_by_scope(strategy: type) -> None:
    """Let XLA compile what lies between the operations that a strategy keeps apart.

    Keras compiles the whole step of one process, with all that observes it.
    """
    wanted = keras.Model.jit_compile

    # No `do_not_convert` here: autograph must convert `fn`.
    def run(original: Any, self: Any, fn: Any, *args: Any, **options: Any) -> Any:
        model = getattr(fn, "__self__", None)
        is_wanted = isinstance(model, keras.Model) and wanted.fget(model)
        if tf.executing_eagerly() or not is_wanted:
            return original(self, fn, *args, **options)
        with tf.xla.experimental.jit_scope(separate_compiled_gradients=True):
            return original(self, fn, *args, **options)

    wrap(strategy, "run", run)
    replace(keras.Model, "jit_compile", property(lambda model: False, wanted.fset))
