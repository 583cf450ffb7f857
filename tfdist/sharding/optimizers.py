"""Optimizers that can be sharded, and weights of which each rank can own rows."""

from typing import Any

import keras

# Optimizers that update each element of a weight without regard to others.
ELEMENTWISE = (
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam"),
    *("RMSprop", "SGD"),
)
# Optimizers that update each weight without regard to others. MultiOptimizer has
# optimizers of its own, and ScheduleFreeAdamW starts from values of the weights.
_PER_WEIGHT = sorted((*ELEMENTWISE, "Adafactor", "Lamb", "Muon"))
# Those of `tfdist.optimizers`.
_ROW_UPDATES = ("LazyAdam", "LazySGD")


def is_one_of(optimizer: Any, *names: str) -> bool:
    """Return whether an optimizer is of a class of Keras with one of these names."""
    # Older versions of Keras lack some of them.
    return type(optimizer) in [getattr(keras.optimizers, n, None) for n in names]


def is_divisible(optimizer: Any, variable: Any, ranks: int) -> bool:
    """Return whether each rank can update some rows of a weight."""
    return (
        is_one_of(optimizer, *ELEMENTWISE)
        # A norm of the whole gradient.
        and optimizer.clipnorm is None
        # Older versions of Keras create some variables without the weight.
        and hasattr(optimizer, "add_optimizer_variables")
        and isinstance(variable, keras.Variable)
        and variable.constraint is None
        and len(variable.shape) > 0
        and variable.shape[0] >= ranks
    )


def check_updates_by_row(optimizer: Any, table: Any) -> None:
    """Raise `ValueError` if a rank cannot update its rows of a table by themselves."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        check_updates_by_row(optimizer.inner_optimizer, table)
        return
    kind = type(optimizer)
    by_row = {*ELEMENTWISE, *_ROW_UPDATES}
    if not hasattr(optimizer, "add_optimizer_variables"):
        # Older versions of Keras create their variables without the weight.
        by_row -= {"Adagrad", "Ftrl"}
    is_ours = kind.__module__ == "tfdist.optimizers" and kind.__name__ in _ROW_UPDATES
    if not is_ours and not is_one_of(optimizer, *by_row):
        raise ValueError(
            "shard_embeddings needs an optimizer that updates each row of a table on "
            f"its own. Received: {kind.__name__} for {table.path} of "
            f"{table.size_bytes} bytes. Use one of {', '.join(sorted(by_row))}, or "
            "loss scaling around it, or a larger shard_embeddings."
        )


def check_updates_dynamic(optimizer: Any, path: str) -> None:
    """Raise `ValueError` if an optimizer also changes rows that have no gradient."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        check_updates_dynamic(optimizer.inner_optimizer, path)
        return
    kind = type(optimizer)
    # Ftrl sets weights without a gradient to zero.
    allowed = {*ELEMENTWISE} - {"Ftrl"}
    if not hasattr(optimizer, "add_optimizer_variables"):
        # Older versions of Keras create its variables without the weight.
        allowed -= {"Adagrad"}
    is_ours = kind.__module__ == "tfdist.optimizers" and kind.__name__ in _ROW_UPDATES
    options = "weight_decay", "clipnorm", "use_ema", "gradient_accumulation_steps"
    found = [name for name in options if getattr(optimizer, name)]
    if found or not (is_ours or is_one_of(optimizer, *allowed)):
        raise ValueError(
            "A DynamicEmbedding needs an optimizer whose update of a row depends on "
            f"that row alone. Received: {kind.__name__}"
            f"{' with ' + ', '.join(found) if found else ''} for {path}. Use one of "
            f"{', '.join(sorted({*allowed, *_ROW_UPDATES}))}, without "
            f"{', '.join(options)}."
        )


def check_shardable(optimizer: Any, owners: Any) -> None:
    """Raise `ValueError` if an optimizer's variables cannot be kept by owners only."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        check_shardable(optimizer.inner_optimizer, owners)
        return
    kind = type(optimizer)
    is_ours = kind.__module__ == "tfdist.optimizers"
    if not is_ours and not is_one_of(optimizer, *_PER_WEIGHT):
        raise ValueError(
            "shard_optimizer=True needs an optimizer that updates each weight on its "
            f"own. Received: {kind.__name__}. Use one of {', '.join(_PER_WEIGHT)}, "
            "tfdist.optimizers, or loss scaling around it, or leave out "
            "shard_optimizer."
        )
    if optimizer.built and owners.of(optimizer) is None:
        raise ValueError(
            "shard_optimizer=True needs an optimizer that is built under the strategy. "
            f"Received: {optimizer.name}, built before. Build it in strategy.scope(), "
            "or leave that to fit."
        )
