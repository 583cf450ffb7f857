"""Putting the patches on, once."""

import functools

from tfdist.compat.keras import optimizer, saving, trainer


@functools.cache
def install() -> None:
    """Patch Keras; what is not under a strategy of tfdist goes on as before."""
    optimizer.patch()
    trainer.patch()
    saving.patch()
