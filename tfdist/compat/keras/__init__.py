"""Patches of Keras, and the hooks by which strategies serve them."""

from tfdist.compat.keras.compile_checks import options_done_wrong
from tfdist.compat.keras.hooks import KerasHooks
from tfdist.compat.keras.install import install
from tfdist.compat.keras.optimizer import apply_reduced, current_scale

__all__ = [
    "KerasHooks",
    "apply_reduced",
    "current_scale",
    "install",
    "options_done_wrong",
]
