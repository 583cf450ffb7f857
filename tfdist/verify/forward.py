"""Following the forward pass: which layers, in which order, and what they draw."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.verify.autograph import unseen
from tfdist.verify.recording import Layer, Recording
from tfdist.verify.variables import Names, path_of

_METHODS = ("normal", "truncated_normal", "uniform", "uniform_full_int")
_FUNCTIONS = (
    "categorical",
    "gamma",
    "normal",
    "poisson",
    "shuffle",
    "truncated_normal",
    "uniform",
)


class ForwardPass:
    """Knows the layers that a step has called.

    Args:
        names: The names of variables.
    """

    def __init__(self, names: Names) -> None:
        self.layers: list[Any] = []
        self._names = names
        self._is_in_step = False
        self._stack: list[Any] = []
        self._draws: list[str] = []

    def install(self) -> None:
        """Watch calls of layers, and of all that draws random numbers."""
        self._watch_layers()
        self._watch_draw(keras.random.SeedGenerator, "next", "a seed of Keras")
        self._watch_draw(tf.nn, "dropout", "tf.nn.dropout")
        for name in dir(tf.random):
            if name in _FUNCTIONS or name.startswith("stateless_"):
                self._watch_draw(tf.random, name, f"tf.random.{name}")
        for name in dir(tf.image):
            if name.startswith(("random_", "stateless_random_")):
                self._watch_draw(tf.image, name, f"tf.image.{name}")
        for name in _METHODS:
            self._watch_draw(tf.random.Generator, name, "a tf.random.Generator")

    def begin(self) -> None:
        """Begin to follow a step."""
        self._is_in_step = True
        self._stack, self.layers, self._draws = [], [], []

    def end(self, recording: Recording, *, is_training: bool) -> None:
        """End a step, and note what was met if it is one that trains.

        Args:
            recording: What remembers.
            is_training: Whether weights were updated.
        """
        self._is_in_step = False
        if not is_training:
            return
        known = {name for layer in recording.layers for name in layer.variables}
        met = {layer.name for layer in recording.layers}
        for layer in self.layers:
            names = [self._names.of(variable) for variable in layer.weights]
            own = [name for name in names if name not in known]
            known.update(own)
            path, kind = path_of(layer), type(layer).__name__
            if path not in met or own:
                recording.layers.append(Layer(path, kind, layer.compute_dtype, own))
            if _normalises_alone(layer):
                _add(recording.batch_norms, path)
        for draw in self._draws:
            _add(recording.draws, draw)

    def _watch_layers(self) -> None:
        """Keep the layers in the order in which their calls end."""
        original = keras.layers.Layer.__call__

        # No `do_not_convert` here: in a custom loop autograph goes through layers.
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            self._enter(layer)
            result = original(layer, *args, **kwargs)
            self._leave(layer)
            return result

        keras.layers.Layer.__call__ = call

    @unseen
    def _enter(self, layer: Any) -> None:
        if self._is_in_step:
            self._stack.append(layer)

    @unseen
    def _leave(self, layer: Any) -> None:
        if self._is_in_step and self._stack:
            self._stack.pop()
            if not any(layer is other for other in self.layers):
                self.layers.append(layer)

    def _watch_draw(self, owner: Any, name: str, what: str) -> None:
        """Note who draws random numbers in a step."""
        original = getattr(owner, name)

        @unseen
        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            if self._is_in_step:
                self._draws.append(f"{self._where()} with {what}")
            return original(*args, **kwargs)

        setattr(owner, name, draw)

    def _where(self) -> str:
        """Name the innermost layer that is being called."""
        if not self._stack:
            return "the training step, outside of any layer,"
        layer = self._stack[-1]
        return f"the layer {path_of(layer)!r} ({type(layer).__name__})"


def _normalises_alone(layer: Any) -> bool:
    """Say whether a layer normalises by the statistics of its own process's rows."""
    is_norm = isinstance(layer, keras.layers.BatchNormalization)
    return is_norm and layer.trainable and not layer.synchronized


def _add(items: list[str], item: str) -> None:
    """Append what is new."""
    if item not in items:
        items.append(item)
