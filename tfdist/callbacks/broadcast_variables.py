"""BroadcastVariables: all ranks start a `fit` with one rank's variables."""

from typing import Any

import keras

from tfdist.callbacks.peers import collective_of, has_strategy
from tfdist.collectives.base import check_root_rank
from tfdist.compat.keras.callbacks import StartsFromRank
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.training.state import broadcast_equal


class BroadcastVariables(keras.callbacks.Callback, StartsFromRank):  # type: ignore[misc]
    """Starts every `fit` from the weights, the optimizer and the metrics of one rank.

    Under a strategy of tfdist every `fit` starts from rank 0 without any callback. This
    one is for what another rank has loaded, or changed by hand, and for
    `tfdist.horovod`, where no strategy does it. The variables travel once they are all
    made, the optimizer's too, and before the first step. Under a strategy they do so
    before any callback looks at them, wherever this one stands in the list.

    Args:
        root_rank: The rank whose variables all others get. Default 0.

    Raises:
        ValueError: If `root_rank` is not a whole number from 0; in `fit`, if there is
            no such rank, if two of these name different ones, or if there are no
            variables yet, without a strategy.
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
        if isinstance(root_rank, bool) or not isinstance(root_rank, int):
            raise ValueError(
                "root_rank must be a whole number. "
                f"Received: root_rank={root_rank!r}. Use 0 for the chief."
            )
        if root_rank < 0:
            raise ValueError(
                "root_rank must not be negative. "
                f"Received: root_rank={root_rank}. Use 0 for the chief."
            )
        self.root_rank = root_rank

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Send the variables, unless a strategy has done so."""
        collective = collective_of(self.model)
        check_root_rank(self.root_rank, collective.size)
        if collective.size > 1 and not has_strategy(self.model):
            broadcast_equal(
                _variables(self.model), "the model", collective, self.root_rank
            )


def _variables(model: keras.Model) -> list[Any]:
    """Return what ranks without a strategy begin with alike.

    The states of random layers are not among it: such ranks draw for themselves, and
    with equal states all of them would drop out the same units.
    """
    optimizers = optimizers_of(model)
    if model.built and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if not model.built or not all(one.built for one in optimizers):
        raise ValueError(
            "BroadcastVariables needs variables before the first step. Received: the "
            f"model {model.name!r}, which is not built yet. Call model.build(...), or "
            "model(x) with some rows, before fit."
        )
    return [
        *model.weights,
        *(variable for one in optimizers for variable in one.variables),
        *model.metrics_variables,
    ]
