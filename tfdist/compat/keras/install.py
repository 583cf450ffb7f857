"""Putting the patches on, once."""

import functools

from tfdist.compat.keras import losses, optimizer, saving, trainer


def install(*, is_alone: bool) -> None:
    """Patch Keras; what is not under a strategy of tfdist goes on as before.

    Args:
        is_alone: Whether the strategy has this process only. If not, a model that was
            made outside of its scope is refused by `fit`: each process would train one
            of its own.
    """
    _patch()
    if not is_alone:
        trainer.refuse_models_of_no_strategy()


@functools.cache
def _patch() -> None:
    """Put every patch on."""
    losses.patch()
    optimizer.patch()
    trainer.patch()
    saving.patch()
