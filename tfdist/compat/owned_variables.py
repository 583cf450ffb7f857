"""Optimizers of Keras that keep variables only of the weights that this rank owns."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.patching import holding, within

# Optimizers that update each weight without regard to others. MultiOptimizer has
# optimizers of its own, and ScheduleFreeAdamW starts from values of the weights.
_PER_WEIGHT = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb"),
    *("Lion", "Muon", "Nadam", "RMSprop", "SGD"),
)
# The attributes of an optimizer that hold the owners of its weights, and of a variable
# that hold its own owner.
_OWNERS, _OWNER = "_tfdist_owners", "_tfdist_owner"
# The attribute that holds the owners of the weights that it updates now.
_APPLIED = "_tfdist_applied"
# Whether the variable that is created now is one that another rank keeps.
_ELSEWHERE = ContextVar("elsewhere", default=False)
_CHIEF_ALONE = ContextVar("chief alone", default=False)


class KeptElsewhere(keras.Variable):  # type: ignore[misc]
    """Stand-in for an optimizer's variable that another rank keeps."""

    # The `WeightOwners` that can read it.
    owners: Any

    @property
    def value(self) -> tf.Tensor:
        """Read the value from its owner, while that lends it."""
        return self.owners.read(self)

    def assign(self, value: Any) -> Any:
        """Leave the value to its owner."""
        return value


def owners_of(strategy: Any) -> Any:
    """Return the `WeightOwners` of a strategy that shards optimizers, or None."""
    return getattr(getattr(strategy, "extended", None), "owners", None)


def owner_of(variable: Any) -> int | None:
    """Return the rank that keeps an optimizer's variable; None if all do."""
    owner: int | None = getattr(variable, _OWNER, None)
    return owner


def is_elsewhere(variable: Any) -> bool:
    """Return whether only another rank keeps a variable."""
    return isinstance(variable, KeptElsewhere)


def chief_alone() -> AbstractContextManager[None]:
    """Mark a block that only the chief runs, so that no other rank can lend."""
    return within(_CHIEF_ALONE, True)


def check_not_alone(what: str) -> None:
    """Raise `RuntimeError` if the chief saves alone what other ranks keep."""
    if _CHIEF_ALONE.get():
        raise RuntimeError(
            "With shard_optimizer=True, all ranks must save a model together. "
            f"Received: {what}, saved by a callback that only the chief runs. Give "
            "fit tfdist.callbacks.ModelCheckpoint or BackupAndRestore, without "
            "RankZero."
        )


def check_shardable(optimizer: Any) -> None:
    """Raise `ValueError` if an optimizer's variables cannot be kept by owners only."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        check_shardable(inner)
        return
    kind = type(optimizer)
    # Older versions of Keras lack some of them.
    known = [getattr(keras.optimizers, name, None) for name in _PER_WEIGHT]
    if kind not in known and not kind.__module__.startswith("tfdist.optimizers."):
        raise ValueError(
            "shard_optimizer=True needs an optimizer that updates each weight on its "
            f"own. Received: {kind.__name__}. Use one of {', '.join(_PER_WEIGHT)}, "
            "tfdist.optimizers, or loss scaling around it, or leave out "
            "shard_optimizer."
        )
    if optimizer.built and _OWNERS not in vars(optimizer):
        raise ValueError(
            "shard_optimizer=True needs an optimizer that is built under the strategy. "
            f"Received: {optimizer.name}, built before. Build it in strategy.scope(), "
            "or leave that to fit."
        )


def build_owned(original: Any, self: Any, variables: Sequence[Any]) -> None:
    """Build an optimizer like Keras, after choosing the owners of its weights."""
    owners = owners_of(tf.distribute.get_strategy()) or owners_of(
        self._distribution_strategy
    )
    if owners is not None and not isinstance(self, keras.optimizers.LossScaleOptimizer):
        check_shardable(self)
        keys = [self._var_key(variable) for variable in variables]
        sizes = [
            tf.TensorShape(v.shape).num_elements() * tf.as_dtype(v.dtype).size
            for v in variables
        ]
        # Unseen by Keras's tracking.
        vars(self)[_OWNERS] = (
            owners,
            dict(zip(keys, owners.assign(sizes), strict=True)),
        )
    original(self, variables)


def add_owned(
    original: Any,
    self: Any,
    reference_variable: Any,
    name: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Create a variable for a weight; on other ranks than its owner, a stand-in."""
    owners, by_key = vars(self).get(_OWNERS, (None, {}))
    # Each rank accumulates the gradients of its rows, of all weights.
    if owners is None or name == "gradient_accumulator":
        return original(self, reference_variable, name, *args, **kwargs)
    owner = by_key[self._var_key(reference_variable)]
    with within(_ELSEWHERE, owner != owners.rank):
        variable = original(self, reference_variable, name, *args, **kwargs)
    _leave_to(owner, variable, owners)
    return variable


def make_stand_in(variable: Any) -> bool:
    """Make a variable that is being created a stand-in, if another rank keeps it."""
    if not _ELSEWHERE.get():
        return False
    variable._value = None
    return True


def apply_to_owned(
    original: Any, self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any]
) -> None:
    """Apply gradients, and note the owner of each weight."""
    _, by_key = vars(self).get(_OWNERS, (None, {}))
    owners = [by_key[self._var_key(v)] for v in trainable_variables] if by_key else []
    with holding(self, _APPLIED, owners):
        original(self, grads, trainable_variables)


def owners_applied(optimizer: Any) -> list[int]:
    """Return the owners of the weights that an optimizer updates now, if it shards."""
    owners: list[int] = vars(optimizer).get(_APPLIED, [])
    return owners


def update_own(
    original: Any,
    self: Any,
    grads: Sequence[Any],
    trainable_variables: Sequence[Any],
    learning_rate: Any,
) -> None:
    """Update the weights that this rank owns."""
    own = _owned_here(self, trainable_variables)
    grads = [grads[i] for i in own]
    original(self, grads, [trainable_variables[i] for i in own], learning_rate)


def decay_own(original: Any, self: Any, variables: Sequence[Any]) -> None:
    """Apply weight decay to the weights that this rank owns."""
    original(self, [variables[i] for i in _owned_here(self, variables)])


@contextmanager
def own_averages(optimizer: Any, variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the weights that this rank owns, with the averages of an optimizer."""
    own = _owned_here(optimizer, variables)
    averages = [optimizer._model_variables_moving_average[i] for i in own]
    with holding(optimizer, "_model_variables_moving_average", averages):
        yield [variables[i] for i in own]


def is_sharded(optimizer: Any) -> bool:
    """Return whether an optimizer keeps variables of owned weights only."""
    return _OWNERS in vars(optimizer)


def finalize_and_share(original: Any, self: Any, var_list: Sequence[Any]) -> None:
    """Give weights their final values like Keras, on their owners and then on all."""
    original(self, var_list)
    if self.use_ema and is_sharded(self):
        _share(self, var_list)


def share_updates(optimizer: Any, variables: Sequence[Any]) -> None:
    """Send the weights that an optimizer has updated from their owners to all ranks."""
    if owners_of(tf.distribute.get_strategy()) is None:
        return
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return
    check_shardable(optimizer)
    _mark_slots(optimizer)
    overwrites = optimizer.use_ema and optimizer.ema_overwrite_frequency
    steps = optimizer.gradient_accumulation_steps
    if overwrites:
        _share(optimizer, optimizer._trainable_variables)
    elif steps:
        keras.ops.cond(
            keras.ops.equal(optimizer._iterations % steps, 0),
            lambda: _share(optimizer, variables),
            lambda: None,
        )
    else:
        _share(optimizer, variables)


def _share(optimizer: Any, variables: Sequence[Any]) -> None:
    """Send weights from their owners to all ranks."""
    owners, by_key = vars(optimizer)[_OWNERS]
    weights = [v._value if isinstance(v, keras.Variable) else v for v in variables]
    owners.share(weights, [by_key[optimizer._var_key(v)] for v in variables])


def _owned_here(optimizer: Any, variables: Sequence[Any]) -> list[int]:
    """Return the positions of the weights that this rank updates."""
    if not is_sharded(optimizer):
        return list(range(len(variables)))
    owners, by_key = vars(optimizer)[_OWNERS]
    keys = [optimizer._var_key(variable) for variable in variables]
    return [i for i, key in enumerate(keys) if by_key[key] == owners.rank]


def _mark_slots(optimizer: Any) -> None:
    """Leave to owners what was created without reference to a weight."""
    all_owners, by_key = vars(optimizer)[_OWNERS]
    owners = [by_key[optimizer._var_key(v)] for v in optimizer._trainable_variables]
    tracked = {id(variable) for variable in optimizer.variables}
    for name, slots in vars(optimizer).items():
        # Such as the factors of Adafactor: lists by weight.
        is_by_weight = isinstance(slots, list) and len(slots) == len(owners)
        if not is_by_weight or name in ("_variables", "_accumulated_gradients"):
            continue
        for slot, owner in zip(slots, owners, strict=True):
            if id(slot) in tracked and owner_of(slot) is None:
                _leave_to(owner, slot, all_owners)


def _leave_to(owner: int, variable: Any, owners: Any) -> None:
    """Leave an optimizer's variable to an owner; elsewhere it becomes a stand-in."""
    setattr(variable, _OWNER, owner)
    if variable._value is not None:
        setattr(variable._value, _OWNER, owner)
    if owner != owners.rank:
        variable.__class__, variable._value = KeptElsewhere, None
        variable.owners = owners
