"""How tfdist's strategies reach into Keras: one interface, and the patches that ask it.

The patches are put on when the first strategy of several processes is made, and act
only under such a strategy. `tests/unit/compat/keras/` fails when Keras changes a symbol
that one of them replaces.
"""

from tfdist.compat.keras.compile_checks import options_done_wrong
from tfdist.compat.keras.hooks import KerasHooks
from tfdist.compat.keras.install import install
from tfdist.compat.keras.loss_scaling import apply_reduced, current_scale

__all__ = [
    "KerasHooks",
    "apply_reduced",
    "current_scale",
    "install",
    "options_done_wrong",
]
