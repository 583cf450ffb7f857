"""Who trains a model together: the collective of its strategy, or nobody else."""

import keras

from tfdist.collectives import Collective, SingleCollective


def collective_of(model: keras.Model) -> Collective:
    """Return how the ranks that train a model talk.

    Args:
        model: The model. If it was made under a strategy of tfdist, its ranks are those
            of the strategy; under another, this process is the only one.
    """
    collective: Collective | None = getattr(
        model.distribute_strategy, "collective", None
    )
    return SingleCollective() if collective is None else collective
