"""Switching Keras's own random layers off: each rank must draw other numbers."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.verify.autograph import unseen
from tfdist.verify.recording import Recording
from tfdist.verify.variables import path_of

_CELLS = ("GRUCell", "LSTMCell", "SimpleRNNCell")
_NOISE = (
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
)
# Augmentations; a crop is none, because without it the shape would be another.
_AUGMENTATIONS = (
    "AugMix",
    "CutMix",
    "MixUp",
    "RandAugment",
    "RandomBrightness",
    "RandomColorDegeneration",
    "RandomColorJitter",
    "RandomContrast",
    "RandomElasticTransform",
    "RandomErasing",
    "RandomFlip",
    "RandomGaussianBlur",
    "RandomGrayscale",
    "RandomHue",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterization",
    "RandomRotation",
    "RandomSaturation",
    "RandomSharpness",
    "RandomShear",
    "RandomTranslation",
    "RandomZoom",
    "Solarization",
)


def switch_off(recording: Recording) -> None:
    """Let the random layers of Keras pass on what they get, and note which.

    Args:
        recording: What remembers them.
    """
    met: list[Any] = []

    def note(layer: Any) -> None:
        if not any(layer is other for other in met):
            met.append(layer)
            recording.switched_off.append(path_of(layer))

    for name in (*_NOISE, *_AUGMENTATIONS):
        # Each release of Keras has a few more.
        layer = getattr(keras.layers, name, None)
        if layer is not None:
            layer.call = _pass_on(note, casts=name in _AUGMENTATIONS)
    for name in _CELLS:
        cell = getattr(keras.layers, name)
        cell.get_dropout_mask = _mask_nothing(note, "dropout")
        cell.get_recurrent_dropout_mask = _mask_nothing(note, "recurrent_dropout")


def _pass_on(note: Callable[[Any], None], *, casts: bool) -> Any:
    """Return a `call` that gives back its inputs, images as floats."""

    @unseen
    def call(self: Any, inputs: Any, training: Any = False) -> Any:
        del training
        note(self)
        is_image = casts and not isinstance(inputs, dict)
        return keras.ops.cast(inputs, self.compute_dtype) if is_image else inputs

    return call


def _mask_nothing(note: Callable[[Any], None], rate: str) -> Any:
    """Return what makes a mask of ones in place of a recurrent cell's dropout."""

    @unseen
    def mask(self: Any, step_input: Any) -> Any:
        if not getattr(self, rate):
            return None
        note(self)
        ones = keras.ops.ones_like(step_input)
        # Some cells want a mask for each gate.
        count = getattr(self, "dropout_mask_count", None)
        return ones if count is None else [ones] * count

    return mask
