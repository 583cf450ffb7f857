"""Optimizers of Keras that keep variables only of the weights that this rank owns."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.patching import holding, within
from tfdist.compat.rows import RowBlock
from tfdist.scaling.owners import DIVIDED

# Optimizers that update each element of a weight without regard to others.
ELEMENTWISE = (
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam"),
    *("RMSprop", "SGD"),
)
# Optimizers that update each weight without regard to others. MultiOptimizer has
# optimizers of its own, and ScheduleFreeAdamW starts from values of the weights.
_PER_WEIGHT = sorted((*ELEMENTWISE, "Adafactor", "Lamb", "Muon"))
# The attributes of an optimizer that hold the owners of its weights, and of a variable
# that hold its own owner.
_OWNERS, _OWNER = "_tfdist_owners", "_tfdist_owner"
# The attribute that holds the owners of the weights that it updates now.
_APPLIED = "_tfdist_applied"
# Whether the variable that is created now is one that another rank keeps.
_ELSEWHERE = ContextVar("elsewhere", default=False)
_CHIEF_ALONE = ContextVar("chief alone", default=False)


class _KeptByOwners(keras.Variable):  # type: ignore[misc]
    """Variable of an optimizer that this rank does not keep whole."""

    # The `WeightOwners` that can read what other ranks keep.
    owners: Any

    def numpy(self) -> np.ndarray:
        """Return the value as an array, without a second copy."""
        return np.asarray(self.value)


class KeptElsewhere(_KeptByOwners):
    """Stand-in for an optimizer's variable that another rank keeps."""

    @property
    def value(self) -> np.ndarray:
        """Read the value from its owner, while that lends it."""
        value: np.ndarray = self.owners.read(self)
        return value

    def assign(self, value: Any) -> Any:
        """Leave the value to its owner."""
        return value


class KeptByRows(_KeptByOwners):
    """Variable of the shape of a divided weight, with the rows that this rank owns."""

    @property
    def value(self) -> Any:
        """This rank's rows; all rows while the other ranks lend theirs."""
        return self.owners.read(self) if self.owners.is_lent(self) else self._value

    def assign(self, value: Any) -> Any:
        """Assign this rank's rows, alone or out of all."""
        is_whole = tuple(value.shape) == tuple(self.shape)
        part = value[self.owners.rows(self)] if is_whole else value
        self._value.assign(self._convert_to_tensor(part, self.dtype))
        return value


def owners_of(strategy: Any) -> Any:
    """Return the `WeightOwners` of a strategy that shards optimizers, or None."""
    return getattr(getattr(strategy, "extended", None), "owners", None)


def owner_of(variable: Any) -> int | None:
    """Return the rank that keeps an optimizer's variable, `DIVIDED`; None if all do."""
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
        divisible = [
            i for i, v in enumerate(variables) if is_divisible(self, v, owners.size)
        ]
        # Unseen by Keras's tracking.
        vars(self)[_OWNERS] = (
            owners,
            dict(zip(keys, owners.assign(sizes, divisible), strict=True)),
        )
    original(self, variables)


def is_divisible(optimizer: Any, variable: Any, ranks: int) -> bool:
    """Return whether each rank can update some rows of a weight."""
    kinds = [getattr(keras.optimizers, name) for name in ELEMENTWISE]
    return (
        type(optimizer) in kinds
        # A norm of the whole gradient.
        and optimizer.clipnorm is None
        # Older versions of Keras create some variables without the weight.
        and hasattr(optimizer, "add_optimizer_variables")
        and isinstance(variable, keras.Variable)
        and variable.constraint is None
        and len(variable.shape) > 0
        and variable.shape[0] >= ranks
    )


def add_owned(
    original: Any,
    self: Any,
    reference_variable: Any,
    name: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Create a variable for a weight: its rows, or a stand-in if a rank owns none."""
    owners, by_key = vars(self).get(_OWNERS, (None, {}))
    # Each rank accumulates the gradients of its rows, of all weights.
    if owners is None or name == "gradient_accumulator":
        return original(self, reference_variable, name, *args, **kwargs)
    owner = by_key[self._var_key(reference_variable)]
    like, whole = reference_variable, tuple(reference_variable.shape)
    if owner == DIVIDED:
        block = RowBlock(like._value, owners.rows(like))
        like = SimpleNamespace(path=like.path, shape=block.shape, dtype=like.dtype)
    with within(_ELSEWHERE, owner not in (owners.rank, DIVIDED)):
        variable = original(self, like, name, *args, **kwargs)
    if owner == DIVIDED:
        variable.__class__, variable._shape = KeptByRows, whole
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
    """Update the weights and rows that this rank owns."""
    own = _owned_here(self, trainable_variables)
    grads = [
        weight.part_of(grads[i]) if isinstance(weight, RowBlock) else grads[i]
        for i, weight in own.items()
    ]
    original(self, grads, [*own.values()], learning_rate)


def decay_own(original: Any, self: Any, variables: Sequence[Any]) -> None:
    """Apply weight decay to the weights and rows that this rank owns."""
    original(self, [*_owned_here(self, variables).values()])


@contextmanager
def own_averages(optimizer: Any, variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the weights and rows that this rank owns, with their averages."""
    own = _owned_here(optimizer, variables)
    averages = [optimizer._model_variables_moving_average[i] for i in own]
    with holding(optimizer, "_model_variables_moving_average", averages):
        yield [*own.values()]


def kept_elements(variable: Any) -> int:
    """Return how many numbers of a variable this rank keeps."""
    if is_elsewhere(variable):
        return 0
    kept = variable._value if isinstance(variable, KeptByRows) else variable
    return math.prod(map(int, kept.shape))


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
    ranks = [by_key[optimizer._var_key(variable)] for variable in variables]
    owners.share([_value_of(variable) for variable in variables], ranks)


def _owned_here(optimizer: Any, variables: Sequence[Any]) -> dict[int, Any]:
    """Return the weights and rows that this rank updates, by position."""
    if not is_sharded(optimizer):
        return dict(enumerate(variables))
    owners, by_key = vars(optimizer)[_OWNERS]
    own = {}
    for i, variable in enumerate(variables):
        owner = by_key[optimizer._var_key(variable)]
        if owner == DIVIDED:
            own[i] = RowBlock(_value_of(variable), owners.rows(variable))
        elif owner == owners.rank:
            own[i] = variable
    return own


def _value_of(variable: Any) -> Any:
    """Return the value of a Keras variable; anything else unchanged."""
    return variable._value if isinstance(variable, keras.Variable) else variable


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
    if owner not in (owners.rank, DIVIDED):
        variable.__class__, variable._value = KeptElsewhere, None
    variable.owners = owners
