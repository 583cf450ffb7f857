"""Patches for `tfdist verify` and `tfdist estimate`, which observe a training."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfdist.compat.patching import wrap

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Note = Callable[[Any], None]

_GENERATOR_METHODS = ("normal", "truncated_normal", "uniform", "uniform_full_int")
_RANDOM_FUNCTIONS = (
    *("categorical", "gamma", "normal", "poisson"),
    *("shuffle", "truncated_normal", "uniform"),
)
_CELLS = ("GRUCell", "LSTMCell", "SimpleRNNCell")
_NOISE = (
    *("AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise"),
    *("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
)
# Not RandomCrop: without it the shape would differ.
_AUGMENTATIONS = {name for name in dir(keras.layers) if name.startswith("Random")}
_AUGMENTATIONS |= {"AugMix", "CutMix", "MixUp", "RandAugment", "Solarization"}
_AUGMENTATIONS -= {"RandomCrop"}


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


def watch_layers(enter: _Note, leave: Callable[[Any, Any], None]) -> None:
    """Call `enter(layer)` and `leave(layer, outputs)` around each layer call."""

    # No `do_not_convert` here: in a custom loop autograph converts layers, too.
    def call(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        enter(layer)
        result = original(layer, *args, **kwargs)
        leave(layer, result)
        return result

    wrap(keras.layers.Layer, "__call__", call)


def watch_gradients(see: Callable[[Any, Any, Any], None]) -> None:
    """Call `see(target, sources, gradients)` after each `tape.gradient`."""

    @unseen
    def gradient(
        original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(tape, target, sources, *args, **kwargs)
        see(target, sources, result)
        return result

    wrap(tf.GradientTape, "gradient", gradient)


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


def watch_draws(note: Callable[[str], None]) -> None:
    """Call `note` with the name of the source before random numbers are drawn."""
    wrap(keras.random.SeedGenerator, "next", _noting(note, "a seed of Keras"))
    wrap(tf.nn, "dropout", _noting(note, "tf.nn.dropout"))
    for name in dir(tf.random):
        if name in _RANDOM_FUNCTIONS or name.startswith("stateless_"):
            wrap(tf.random, name, _noting(note, f"tf.random.{name}"))
    for name in dir(tf.image):
        if name.startswith(("random_", "stateless_random_")):
            wrap(tf.image, name, _noting(note, f"tf.image.{name}"))
    for name in _GENERATOR_METHODS:
        wrap(tf.random.Generator, name, _noting(note, "a tf.random.Generator"))


def _noting(note: Callable[[str], None], source: str) -> Callable[..., Any]:
    @unseen
    def draw(original: Any, *args: Any, **kwargs: Any) -> Any:
        note(source)
        return original(*args, **kwargs)

    return draw


def switch_jit_off(note: Callable[[], None]) -> None:
    """Compile models without XLA, because XLA code cannot be observed."""

    def write(model: Any, value: Any) -> None:
        del model
        if value is True:
            note()

    replace(keras.Model, "jit_compile", property(lambda model: False, write))


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


def switch_random_layers_off(note: _Note) -> None:
    """Make Keras's random layers return their inputs; call `note` for each of them."""
    for name in (*_NOISE, *_AUGMENTATIONS):
        # Some exist only in later releases of Keras.
        layer = getattr(keras.layers, name, None)
        if layer is not None:
            replace(layer, "call", _identity(note, casts=name in _AUGMENTATIONS))
    for name in _CELLS:
        cell = getattr(keras.layers, name)
        for rate in ("dropout", "recurrent_dropout"):
            replace(cell, f"get_{rate}_mask", _mask_of_ones(note, rate))


def _identity(note: _Note, *, casts: bool) -> Any:
    """Return a `call` that returns its inputs, images in the compute dtype."""

    @unseen
    def call(self: Any, inputs: Any, training: Any = False) -> Any:
        del training
        note(self)
        is_image = casts and not isinstance(inputs, dict)
        return keras.ops.cast(inputs, self.compute_dtype) if is_image else inputs

    return call


def _mask_of_ones(note: _Note, rate: str) -> Any:
    """Return a replacement for a recurrent cell's dropout mask."""

    @unseen
    def mask(self: Any, step_input: Any) -> Any:
        if not getattr(self, rate):
            return None
        note(self)
        ones = keras.ops.ones_like(step_input)
        # Some cells need a mask for each gate.
        count = getattr(self, "dropout_mask_count", None)
        return ones if count is None else [ones] * count

    return mask
