"""Who trains a model together, with a strategy or with `tfdist.horovod`."""

import keras

from tfdist.collectives import Collective, SingleCollective
from tfdist.collectives.horovod.current import started_collective, started_rank


def collective_of(model: keras.Model) -> Collective:
    """Return how the ranks that train a model talk; all of them have to ask.

    Args:
        model: The model. If it was made under a strategy of tfdist, its ranks are those
            of the strategy; else those of a Horovod that the program has started. If
            there is neither, this process is the only one.
    """
    return _of_strategy(model) or started_collective() or SingleCollective()


def is_chief_of(model: keras.Model) -> bool:
    """Say whether this process is rank 0 of those that train a model.

    Args:
        model: The model. Nobody else has to ask.
    """
    collective = _of_strategy(model)
    return not (started_rank() if collective is None else collective.rank)


def has_strategy(model: keras.Model) -> bool:
    """Say whether a model was made under a strategy of several processes.

    Args:
        model: The model.
    """
    return _of_strategy(model) is not None


def is_on_its_own(model: keras.Model) -> bool:
    """Say whether ranks train a model together without a strategy to agree for them.

    Args:
        model: The model. Nobody else has to ask.
    """
    return not has_strategy(model) and started_rank() is not None


def _of_strategy(model: keras.Model) -> Collective | None:
    """Return the collective of the strategy of a model, if it has one."""
    collective: Collective | None = getattr(
        model.distribute_strategy, "collective", None
    )
    return collective
