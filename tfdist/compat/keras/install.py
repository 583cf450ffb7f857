"""Installation of the patches, once in a process."""

import functools

from tfdist.compat.keras import versions

# Before the patches are imported: a missing symbol would raise there, without a word of
# versions.
versions.check_symbols()


def install(*, is_alone: bool) -> None:
    """Patch Keras; what is not under a strategy of tfdist goes on as before.

    One thing is new there, too: the loss scale stands in the logs of an epoch.

    Args:
        is_alone: Whether the strategy has this process only. If not, a model that was
            made outside of its scope is refused by `fit`: each process would train one
            of its own.
    """
    _patch()
    if not is_alone:
        from tfdist.compat.keras import trainer

        trainer.refuse_models_of_no_strategy()


@functools.cache
def _patch() -> None:
    """Put every patch on."""
    from tfdist.compat.keras import (
        callbacks,
        compile_checks,
        input,
        layers,
        loss_scaling,
        losses_and_metrics,
        optimizer,
        own_reduction,
        pure_step,
        saving,
        sharded_optimizer,
        trainer,
        variables,
    )

    versions.warn_if_untested()
    callbacks.patch()
    input.patch()
    layers.patch()
    loss_scaling.patch()
    losses_and_metrics.patch()
    optimizer.patch()
    own_reduction.patch()
    pure_step.patch()
    trainer.patch()
    saving.patch()
    sharded_optimizer.patch()
    variables.patch()
    # Last, to see what the others have made of it.
    compile_checks.patch()
