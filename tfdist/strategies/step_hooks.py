"""What a strategy of several processes does inside of the steps of Keras."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.data.sharding import Shard, cut_rows, rows_of
from tfdist.gradients import GradientReducer, weigh, with_sums_dense
from tfdist.strategies.metrics import MetricsOfRanks
from tfdist.strategies.naming import name_in_graph
from tfdist.strategies.predictions import gather_rows
from tfdist.strategies.state import put_back
from tfdist.strategies.step import Step

# As in tfdist.collectives.keys: neighbouring ranks get distant numbers.
_SPREAD = 0x9E3779B1


class StepHooks:
    """Runs steps on this rank's rows, and answers what Keras asks within them.

    Args:
        collective: How the processes talk.
        reducer: How gradients travel.
    """

    def __init__(self, collective: Collective, reducer: GradientReducer) -> None:
        self._collective = collective
        self._reducer = reducer
        self._metrics = MetricsOfRanks(collective)
        # The step that is being traced, or run eagerly.
        self.step: Step | None = None
        self._are_reduced = False
        # The state of layers that may differ between ranks, by model.
        self._apart: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def in_step(self) -> bool:
        """Whether a step of Keras is being traced, or run eagerly."""
        return self.step is not None

    def is_keras_step(self, fn: Any, args: Sequence[Any]) -> bool:
        """Say whether Keras, and not a custom loop, calls `Strategy.run`."""
        if self._collective.size == 1 or len(args) != 1:
            return False
        return isinstance(args[0], Shard) or (_trainer_of(fn) is not None)

    def run_step(self, fn: Any, call: Callable[[Any], Any], data: Any) -> Any:
        """Run a step of Keras on this rank's rows.

        Args:
            fn: The step: a method of a model, or Keras's wrapper around prediction.
            call: Runs it on a batch.
            data: A `Shard`; or a batch of this rank's own (`train_on_batch`).

        Returns:
            What the step returns; for predictions, those of all ranks.
        """
        trainer = _trainer_of(fn)
        # test_on_batch is each rank's own affair.
        is_joint = isinstance(data, Shard) or fn.__name__ == "train_step"
        if not isinstance(data, Shard):
            rows = rows_of(data)
            data = Shard(data, () if is_joint else rows, rows, ())
        if trainer is not None and isinstance(data.rows, tuple):
            name = name_in_graph("rows of the batch")
            data = data._replace(
                rows=self._collective.all_reduce([data.own], name=name)[0]
            )
        step = Step(data, trainer, self._collective if is_joint else None)
        undo: AbstractContextManager[None] = nullcontext()
        if trainer is not None and data.stand_in:
            undo = put_back(trainer, data.stand_in[0], step.reduced)
        with self._making(step), undo, _compiled(trainer):
            outputs = call(data.data)
        if trainer is None:
            return gather_rows(
                tf.nest.map_structure(lambda o: cut_rows(o, 0, data.own), outputs),
                self._collective,
            )
        if is_joint:
            self._metrics.note_share(trainer, step, outputs)
        return outputs

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Fill in gradients that only other ranks have."""
        if self._are_reduced:
            return list(gradients)
        # Eager code cannot look where a gradient comes from.
        is_summed = self.step is not None and self.step.has_sparse_data()
        is_summed &= tf.executing_eagerly()
        gradients = [with_sums_dense(g, is_summed=is_summed) for g in gradients]
        return self._reducer.complete(gradients, variables, "the optimizer")

    def weigh_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Weigh gradients by this rank's share of the global batch.

        In a custom loop they are left alone: there the user divides the loss by the
        global batch size, as everywhere in tf.distribute.
        """
        if self._are_reduced or self.step is None:
            return list(gradients)
        return weigh(gradients, self.step.shard.own, self.step.shard.rows)

    def reduce_gradients(
        self, gradients: Sequence[Any], *, is_weighed: bool = False
    ) -> list[Any]:
        """Weigh gradients, unless they are, and sum them over ranks.

        The state of layers that the step has assigned travels with them, so that it is
        the same on all ranks after every step.
        """
        if self._are_reduced:
            return list(gradients)
        if not is_weighed:
            gradients = self.weigh_gradients(gradients)
        name = name_in_graph("gradients")
        # Gradients that were weighed before are accumulated: they travel rarely.
        state = [] if self.step is None or is_weighed else self.step.state()
        values = self.weigh_gradients([tf.convert_to_tensor(v) for v in state])
        results = self._reducer.reduce(
            gradients, name, beside=values, are_shares=self.in_step
        )
        if self.step is not None:
            self.step.reduced_state(state, results[len(gradients) :])
        return results[: len(gradients)]

    @contextmanager
    def gradients_are_reduced(self) -> Iterator[None]:
        """Mark a block in which an optimizer gets gradients that are already sums."""
        self._are_reduced = True
        try:
            yield
        finally:
            self._are_reduced = False

    def share(self) -> Any:
        """Return this rank's share of the step's global batch, a float64 scalar."""
        assert self.step is not None
        return self.step.share()

    def sum_over_ranks(self, value: Any, what: str) -> Any:
        """Sum a value of the step over the ranks that have rows."""
        assert self.step is not None
        return self.step.sum(value, what)

    def note_assigned(self, variable: Any) -> None:
        """Note that a variable is assigned, if it is so in a step."""
        if self.step is not None:
            self.step.note_assigned(variable)

    def fold_seed(self, seed: Any) -> Any:
        """Make a random seed this rank's own, within steps; rank 0's stays."""
        if self.step is None or self._collective.rank == 0:
            return seed
        spread = (self._collective.rank * _SPREAD) & 0xFFFFFFFF
        return tf.bitwise.bitwise_xor(seed, tf.constant([spread, 0], seed.dtype))

    @contextmanager
    def _making(self, step: Step) -> Iterator[None]:
        """Let the hooks know the step; keep what it left different between ranks."""
        self.step = step
        try:
            yield
            if state := step.state():
                apart = self._apart.setdefault(step.trainer, {})
                apart.update({id(variable): variable for variable in state})
        finally:
            self.step = None


def _trainer_of(fn: Any) -> Any:
    """Return the model whose step a function is, if it is one."""
    trainer = getattr(fn, "__self__", None)
    is_step = isinstance(trainer, keras.Model) and fn.__name__ in (
        "train_step",
        "test_step",
    )
    return trainer if is_step else None


def _compiled(trainer: Any) -> AbstractContextManager[Any]:
    """Let XLA compile what follows, if the model wants it: all but collectives."""
    if trainer is None or not trainer.jit_compile or tf.executing_eagerly():
        return nullcontext()
    scope: AbstractContextManager[Any] = tf.xla.experimental.jit_scope(
        separate_compiled_gradients=True
    )
    return scope
