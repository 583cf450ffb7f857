"""Installation of the patches, once per process."""

import functools

from tfdist.compat.keras import versions

# First, because importing the patches would fail without naming a version.
versions.check_symbols()


def install(*, is_alone: bool) -> None:
    """Patch Keras; models outside of tfdist's strategies keep Keras's behavior."""
    # They only gain the loss scale in the logs of an epoch. With several processes,
    # `fit` rejects models created outside of a scope, which would train separately.
    _patch()
    if not is_alone:
        from tfdist.compat.keras import trainer

        trainer.refuse_models_of_no_strategy()


@functools.cache
def _patch() -> None:
    """Apply all patches."""
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
    # Last, because it wraps what the others have patched.
    compile_checks.patch()
