"""Installation of the patches, once per process."""

import functools
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.cluster.detect import detect_membership
from tfdist.compat.keras import versions
from tfdist.compat.patching import wrap

# First, because importing the patches would fail without naming a version.
versions.check(versions.SYMBOLS)


def install(*, is_alone: bool) -> None:
    """Patch Keras; models outside of tfdist's strategies keep Keras's behavior."""
    # They only gain the loss scale in the logs of an epoch. With several processes,
    # `fit` rejects models created outside of a scope, which would train separately.
    _patch()
    if not is_alone:
        _patch_job()


@functools.cache
def install_for_observers() -> None:
    """Patch what an observer sees, around all other patches."""
    from tfdist.compat.keras.patches import PATCHES_OF_OBSERVERS

    _patch()
    _replace(PATCHES_OF_OBSERVERS)


def install_for_default_strategy() -> None:
    """Let `keras.distribution` mean the strategy that is made for the program."""
    from keras.src.backend.tensorflow import distribution_lib

    from tfdist.compat.distribution import check_initialized
    from tfdist.compat.keras.patches import PATCHES_OF_DEFAULT_STRATEGY

    # TensorFlow's backend has none.
    distribution_lib.initialize = check_initialized
    _replace(PATCHES_OF_DEFAULT_STRATEGY)


@functools.cache
def _patch() -> None:
    """Apply all patches."""
    from keras.src.backend.tensorflow import trainer

    from tfdist.compat.keras.input import ShardIterator
    from tfdist.compat.keras.patches import (
        PATCHES,
        PATCHES_OF_OTHER_RANKS,
        TENSORFLOW_PATCHES,
    )

    ours = PATCHES | PATCHES_OF_OTHER_RANKS
    needed = {symbol: versions.parameters_of(new) for symbol, new in ours.items()}
    versions.check(needed)
    versions.warn_if_untested([*versions.SYMBOLS, *needed])
    trainer.TFEpochIterator = ShardIterator
    _replace(PATCHES | TENSORFLOW_PATCHES)


@functools.cache
def _patch_job() -> None:
    """Refuse models of no strategy, and leave output to the chief."""
    from tfdist.compat.chief_output import warn_elsewhere
    from tfdist.compat.keras.patches import PATCHES_OF_JOBS, PATCHES_OF_OTHER_RANKS
    from tfdist.compat.trackers import track_nothing_here

    _replace(PATCHES_OF_JOBS)
    member = detect_membership()
    if member.trains and not member.is_chief:
        _replace(PATCHES_OF_OTHER_RANKS)
        warn_elsewhere()
        track_nothing_here()


def _replace(patches: Mapping[str, Callable[..., Any]]) -> None:
    """Replace symbols."""
    for symbol, replacement in patches.items():
        owner, _, name = symbol.replace(":", ".").rpartition(".")
        wrap(pkgutil.resolve_name(owner), name, replacement)
