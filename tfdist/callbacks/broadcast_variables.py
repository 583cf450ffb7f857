"""BroadcastVariables: a `fit` that starts from one rank's variables."""

from typing import Any

import keras

from tfdist.callbacks.ranks import collective_of, has_strategy
from tfdist.collectives.base import check_root_rank
from tfdist.compat.keras.callbacks import StartsFromRank
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.training.state import broadcast_equal


class BroadcastVariables(keras.callbacks.Callback, StartsFromRank):
    """Callback that starts every `fit` from one rank's weights, optimizer and metrics.

    A tfdist strategy already starts every `fit` from rank 0. Use this callback to start
    from another rank, which has loaded or changed variables, or with `tfdist.horovod`,
    which has no strategy. The broadcast happens before the first step, once all
    variables exist, including the optimizer's. Under a strategy it also happens before
    any other callback reads the variables, in whatever order the callbacks are listed.

    Args:
        root_rank: The rank whose variables all other ranks receive. Default 0.

    Raises:
        ValueError: If `root_rank` is not a whole number from 0; in `fit`, if no rank
            has that number, if two of these callbacks name different ranks, or, without
            a strategy, if the model is not built.
        RuntimeError: In `fit`, if the ranks have different callbacks or variables.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(
        ...     x, x[:, :1], verbose=0, callbacks=[BroadcastVariables(root_rank=0)]
        ... )
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        if type(root_rank) is not int or root_rank < 0:
            raise ValueError(
                "root_rank must be a whole number that is not negative. "
                f"Received: root_rank={root_rank!r}. Use 0 for the chief."
            )
        self.root_rank = root_rank
        self._is_pending = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcast the variables, unless a strategy does."""
        self._broadcast()
        # Later callbacks may load weights when training begins.
        self._is_pending = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcast them again in the first epoch."""
        if self._is_pending:
            self._is_pending = False
            self._broadcast()

    def _broadcast(self) -> None:
        """Broadcast the variables, unless a strategy does."""
        collective = collective_of(self.model)
        check_root_rank(self.root_rank, collective.size)
        if collective.size > 1 and not has_strategy(self.model):
            broadcast_equal(
                _variables(self.model), "the model", collective, self.root_rank
            )


def _variables(model: keras.Model) -> list[Any]:
    """Return the variables to broadcast without a strategy."""
    optimizers = optimizers_of(model)
    if model.built and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if not model.built or not all(one.built for one in optimizers):
        raise ValueError(
            "BroadcastVariables needs variables before the first step. Received: the "
            f"model {model.name!r}, which is not built yet. Call model.build(...), or "
            "model(x) with a batch, before fit."
        )
    # Without states of random layers, so that dropout differs between ranks.
    return [
        *model.weights,
        *(variable for one in optimizers for variable in one.variables),
        *model.metrics_variables,
    ]
