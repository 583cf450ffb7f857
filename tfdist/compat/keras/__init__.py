"""Patches of Keras, and the hooks by which strategies serve them."""

# Before any other module, whose imports may fail: it names what this Keras lacks.
from tfdist.compat.keras.install import install

__all__ = ["install"]
