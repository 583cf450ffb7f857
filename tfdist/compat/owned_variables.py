"""Optimizers of Keras that keep variables only of the weights that this rank owns."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.patching import holding, within
from tfdist.sharding.assignment import DIVIDED
from tfdist.sharding.optimizers import (
    check_shardable,
    check_updates_by_row,
    is_divisible,
)
from tfdist.sharding.rows import RowBlock

# Whether the variable that is created now is one that another rank keeps.
_ELSEWHERE = ContextVar("elsewhere", default=False)
# Whether an optimizer reads tables, which means this rank's rows.
_BY_ROWS = ContextVar("by rows", default=False)


class OwnedVariable(keras.Variable):
    """Variable of an optimizer that a rank keeps alone, or of which each keeps rows.

    It has the shape of the whole. On the other ranks it is a stand-in without a value.
    """

    # The rank that keeps it, or `DIVIDED`.
    owner: int
    # The `WeightOwners` that can read what other ranks keep.
    owners: Any

    @property
    def value(self) -> Any:
        """What this rank keeps; the whole while the other ranks lend their parts."""
        is_lent = self.owner == DIVIDED and self.owners.is_lent(self)
        if self._value is None or is_lent:
            return self.owners.read(self)
        return self._value if self.owner == DIVIDED else super().value

    def assign(self, value: Any) -> Any:
        """Assign what this rank keeps; its rows come alone, or out of all."""
        if self._value is None:
            return value
        if self.owner != DIVIDED:
            return super().assign(value)
        is_whole = tuple(value.shape) == tuple(self.shape)
        # Of a dataset in a file, only these rows are read.
        part = value[self.owners.rows(self)] if is_whole else value
        self._value.assign(self._convert_to_tensor(part, self.dtype))
        return value

    def numpy(self) -> np.ndarray:
        """Return the value as an array, without a second copy."""
        return np.asarray(self.value)


class DividedTable(OwnedVariable):
    """Weight of an `Embedding` of which each rank keeps some rows."""

    @property
    def value(self) -> Any:
        """This rank's rows, for optimizers; the whole while the other ranks lend."""
        if _BY_ROWS.get() or self.owners.is_lent(self):
            return super().value
        raise RuntimeError(
            "With shard_embeddings, each rank has some rows of a table, which only "
            f"lookups of its Embedding read. Received: {self.path}, read otherwise, as "
            "for an output layer, a regularizer or get_weights. To see its values, "
            "call model.save on every rank and read the file. To use it otherwise, "
            "keep it whole: give shard_embeddings more than its "
            f"{self.size_bytes} bytes."
        )

    @property
    def handle(self) -> Any:
        """Handle by which gradient tapes identify the table."""
        return self._value.handle

    @property
    def size_bytes(self) -> int:
        """The size of the whole table in bytes."""
        return self.shape.num_elements() * tf.as_dtype(self._dtype).size

    def _deferred_initialize(self) -> None:
        """Create the rows after a symbolic build; no rank gets another's."""
        super()._deferred_initialize()
        self.owners.forget(self._value)


def reading_rows() -> AbstractContextManager[None]:
    """Let an optimizer read this rank's rows of tables in a block."""
    return within(_BY_ROWS, True)


def divide(variable: Any, owners: Any) -> None:
    """Make a variable that has been created with this rank's rows a divided table."""
    _leave_to(DIVIDED, variable, owners)
    variable.__class__ = DividedTable


def owners_of(strategy: Any) -> Any:
    """Return the `WeightOwners` of a strategy that shards, or None."""
    return getattr(getattr(strategy, "extended", None), "owners", None)


def owner_of(variable: Any) -> int | None:
    """Return the rank that keeps an optimizer's variable, `DIVIDED`; None if all do."""
    return variable.owner if isinstance(variable, OwnedVariable) else None


def is_elsewhere(variable: Any) -> bool:
    """Return whether only another rank keeps a variable."""
    return isinstance(variable, OwnedVariable) and variable._value is None


def build_owned(original: Any, self: Any, variables: Sequence[Any]) -> None:
    """Build an optimizer like Keras, after choosing the owners of its weights."""
    owners = owners_of(tf.distribute.get_strategy()) or owners_of(
        self._distribution_strategy
    )
    is_wrapper = isinstance(self, keras.optimizers.LossScaleOptimizer)
    for table in (v for v in variables if isinstance(v, DividedTable)):
        check_updates_by_row(self, table)
    if owners is not None and owners.shards_optimizers and not is_wrapper:
        check_shardable(self, owners)
        by_key = {
            self._var_key(variable): variable
            for variable in variables
            if not isinstance(variable, DividedTable)
        }
        owners.assign(
            self,
            {
                key: tf.TensorShape(v.shape).num_elements() * tf.as_dtype(v.dtype).size
                for key, v in by_key.items()
            },
            {key for key, v in by_key.items() if is_divisible(self, v, owners.size)},
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
    """Create a variable for a weight: its rows, or a stand-in if a rank owns none."""
    like, whole = reference_variable, tuple(reference_variable.shape)
    sharding = _sharding_of(self)
    if isinstance(like, DividedTable):
        owner, owners = DIVIDED, like.owners
    # Each rank accumulates the gradients of its rows, of all weights.
    elif sharding is None or name == "gradient_accumulator":
        return original(self, reference_variable, name, *args, **kwargs)
    else:
        owners, by_key = sharding
        owner = by_key[self._var_key(reference_variable)]
    if owner == DIVIDED:
        rows = owners.rows(like)
        shape = tf.TensorShape([rows.stop - rows.start, *whole[1:]])
        like = SimpleNamespace(path=like.path, shape=shape, dtype=like.dtype)
    with within(_ELSEWHERE, owner not in (owners.rank, DIVIDED)):
        variable = original(self, like, name, *args, **kwargs)
    variable._shape = whole
    _leave_to(owner, variable, owners)
    return variable


def make_stand_in(variable: Any) -> bool:
    """Make a variable that is being created a stand-in, if another rank keeps it."""
    if not _ELSEWHERE.get():
        return False
    variable._value = None
    return True


def owners_by_weight(optimizer: Any, variables: Sequence[Any]) -> list[int]:
    """Return the owners of weights that an optimizer updates; none if all ranks do."""
    sharding = _sharding_of(optimizer)
    if sharding is None:
        return []
    _, by_key = sharding
    return [
        DIVIDED if isinstance(v, DividedTable) else by_key[optimizer._var_key(v)]
        for v in variables
    ]


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


def is_sharded(optimizer: Any) -> bool:
    """Return whether an optimizer keeps variables of owned weights only."""
    return _sharding_of(optimizer) is not None


def finalize_and_share(original: Any, self: Any, var_list: Sequence[Any]) -> None:
    """Give weights their final values like Keras, on their owners and then on all."""
    with reading_rows():
        original(self, var_list)
    if self.use_ema and is_sharded(self):
        _share(self, var_list)


def share_updates(optimizer: Any, variables: Sequence[Any]) -> None:
    """Send the weights that an optimizer has updated from their owners to all ranks."""
    owners = owners_of(tf.distribute.get_strategy())
    is_wrapper = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if owners is None or is_wrapper or not owners.shards_optimizers:
        return
    check_shardable(optimizer, owners)
    _leave_slots(optimizer, owners)
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


def _sharding_of(optimizer: Any) -> tuple[Any, Mapping[Any, int]] | None:
    """Return the `WeightOwners` of an optimizer and its owners by key, if it shards."""
    strategies = tf.distribute.get_strategy(), optimizer._distribution_strategy
    for owners in map(owners_of, strategies):
        by_key = None if owners is None else owners.of(optimizer)
        if by_key is not None:
            return owners, by_key
    return None


def _share(optimizer: Any, variables: Sequence[Any]) -> None:
    """Send weights from their owners to all ranks."""
    owners, by_key = _sharding_of(optimizer)  # type: ignore[misc]
    variables = [v for v in variables if not isinstance(v, DividedTable)]
    ranks = [by_key[optimizer._var_key(variable)] for variable in variables]
    owners.share([value_of(variable) for variable in variables], ranks)


def _owned_here(optimizer: Any, variables: Sequence[Any]) -> dict[int, Any]:
    """Return the weights and rows that this rank updates, by position."""
    sharding = _sharding_of(optimizer)
    if sharding is None:
        return dict(enumerate(variables))
    owners, by_key = sharding
    own: dict[int, Any] = {}
    for i, variable in enumerate(variables):
        if isinstance(variable, DividedTable):
            own[i] = variable
            continue
        owner = by_key[optimizer._var_key(variable)]
        if owner == DIVIDED:
            own[i] = RowBlock(value_of(variable), owners.rows(variable))
        elif owner == owners.rank:
            own[i] = variable
    return own


def value_of(variable: Any) -> Any:
    """Return the value of a Keras variable; anything else unchanged."""
    return variable._value if isinstance(variable, keras.Variable) else variable


def _leave_slots(optimizer: Any, owners: Any) -> None:
    """Leave to owners what was created without reference to a weight."""
    ranks = owners_by_weight(optimizer, optimizer._trainable_variables)
    tracked = {id(variable) for variable in optimizer.variables}
    for name, slots in vars(optimizer).items():
        # Such as the factors of Adafactor: lists by weight.
        is_by_weight = isinstance(slots, list) and len(slots) == len(ranks)
        if not is_by_weight or name in ("_variables", "_accumulated_gradients"):
            continue
        for slot, owner in zip(slots, ranks, strict=True):
            if id(slot) in tracked and owner_of(slot) is None:
                _leave_to(owner, slot, owners)


def _leave_to(owner: int, variable: Any, owners: Any) -> None:
    """Leave an optimizer's variable to an owner; elsewhere it becomes a stand-in."""
    if variable._value is not None:
        owners.forget(variable._value)
    variable.__class__, variable.owner, variable.owners = OwnedVariable, owner, owners
    if owner not in (owners.rank, DIVIDED):
        variable._value = None
