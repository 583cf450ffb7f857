"""What a strategy of several processes does inside of the steps of Keras."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.collectives.base import name_in_graph
from tfdist.collectives.ops import SPREAD
from tfdist.data.sharding import Shard, cut_rows, shard_of
from tfdist.gradients import GradientReducer, weigh, with_sums_dense
from tfdist.training.created_variables import CreatedVariables
from tfdist.training.metrics import MetricsOfRanks
from tfdist.training.predictions import gather_rows
from tfdist.training.state import put_back
from tfdist.training.step import Step, state_of_layers


class StepHooks:
    """Runs steps on this rank's rows, and answers what Keras asks within them.

    Args:
        collective: How the processes talk.
        reducer: How gradients travel.
    """

    # Whether the devices of this process share the variables of optimizers.
    updates_once = False

    def __init__(self, collective: Collective, reducer: GradientReducer) -> None:
        self._collective = collective
        self._reducer = reducer
        self._metrics = MetricsOfRanks(collective)
        # The step that is being traced, or run eagerly.
        self.step: Step | None = None
        self.are_reduced = False
        # The call of Keras that is going on: a model, None for predictions, and whether
        # all ranks make it together.
        self._call: tuple[Any, bool] | None = None
        self.created = CreatedVariables(collective)
        # The state of layers that may differ between ranks, and what the ranks have
        # agreed to reduce in a step, by model.
        self._apart: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._agreed: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def in_step(self) -> bool:
        """Whether a step of Keras is being traced, or run eagerly."""
        return self.step is not None

    @property
    def is_called(self) -> bool:
        """Whether Keras, and not a custom loop, calls `Strategy.run`."""
        return self._call is not None

    def run_step(self, call: Callable[[Any], Any], data: Any) -> Any:
        """Run a step of the call of Keras that is going on, on this rank's rows.

        Args:
            call: Runs the step on a batch.
            data: A `Shard`; or a batch of this rank's own (`train_on_batch`).

        Returns:
            What the step returns; for predictions, those of all ranks.

        Raises:
            RuntimeError: If no call of Keras is going on.
        """
        trainer, is_joint = self._called()
        shard = shard_of(data, is_joint=is_joint)
        known = self.created.count
        step, outputs = self.make_step(call, shard, trainer, is_joint=is_joint)
        if not is_joint:
            return outputs
        if trainer is None:
            return gather_rows(cut_rows(outputs, 0, shard.own), self._collective)
        self.created.start_equal_since(known)
        self._metrics.note_share(trainer, step.share(), outputs)
        return outputs

    def make_step(
        self, call: Callable[[Any], Any], shard: Shard, trainer: Any, *, is_joint: bool
    ) -> tuple[Step, Any]:
        """Make a step on the rows of a shard.

        Args:
            call: Runs the step on a batch.
            shard: The rows.
            trainer: The model whose step it is, None in predictions.
            is_joint: Whether all ranks make this step together.

        Returns:
            The step, and what it returned.
        """
        has_rows = is_joint and not shard.stand_in
        if trainer is not None and isinstance(shard.rows, tuple):
            # Nobody has looked how many rows it has.
            has_rows = False
            name = name_in_graph("rows of the batch")
            shard = shard._replace(
                rows=self._collective.all_reduce([shard.own], name=name)[0]
            )
        collective = self._collective if is_joint else None
        step = Step(shard, trainer, collective, has_rows=has_rows)
        undo: AbstractContextManager[None] = nullcontext()
        if trainer is not None and shard.stand_in:
            undo = put_back(step)
        with self._making(step), undo, step.compiled():
            return step, call(shard.data)

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Fill in gradients that only other ranks have."""
        if self.are_reduced:
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
        if self.are_reduced or self.step is None:
            return list(gradients)
        weight = self._reducer.weight(self.step.share())
        return weigh(gradients, weight, is_positive=self.step.has_rows)

    def reduce_gradients(
        self, gradients: Sequence[Any], *, is_weighed: bool = False
    ) -> list[Any]:
        """Weigh gradients, unless they are, and sum them over ranks.

        The state of layers that the step has assigned travels with them, so that it is
        the same on all ranks after every step.
        """
        if self.are_reduced:
            return list(gradients)
        if not is_weighed:
            gradients = self.weigh_gradients(gradients)
        name = name_in_graph("gradients")
        # Gradients that were weighed before are accumulated: they travel rarely.
        step = self.step
        has_state = step is not None and step.is_certain and not is_weighed
        state = self._agreed_state(step) if has_state else []
        values = [tf.convert_to_tensor(variable) for variable in state]
        if step is not None:
            values = weigh(values, step.share(), is_positive=step.has_rows)
        results = self._reducer.reduce(
            gradients, name, beside=values, are_shares=self.in_step
        )
        if step is not None:
            step.reduced_state(state, results[len(gradients) :])
        return results[: len(gradients)]

    @contextmanager
    def gradients_are_reduced(self) -> Iterator[None]:
        """Mark a block in which an optimizer gets gradients that are already sums."""
        self.are_reduced = True
        try:
            yield
        finally:
            self.are_reduced = False

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
        # Neighbouring ranks get distant numbers.
        spread = (self._collective.rank * SPREAD) & 0xFFFFFFFF
        return tf.bitwise.bitwise_xor(seed, tf.constant([spread, 0], seed.dtype))

    def _called(self) -> tuple[Any, bool]:
        """Return the model whose call is going on, and whether all ranks make it."""
        if self._call is None:
            raise RuntimeError(
                "A step of fit, evaluate or predict must run in the function that "
                "Keras makes for it. Received: one of their batches, in another call "
                "of strategy.run. Let a make_train_function, make_test_function or "
                "make_predict_function of your own wrap what that of Keras makes."
            )
        return self._call

    @contextmanager
    def _making(self, step: Step) -> Iterator[None]:
        """Let the hooks know the step; keep what it left different between ranks."""
        self.step = step
        try:
            yield
            if state := step.state():
                self._apart.setdefault(step.trainer, set()).update(state)
        finally:
            self.step = None

    def _agreed_state(self, step: Any) -> list[Any]:
        """Return the state of layers that any rank has assigned in a step.

        A layer that only some ranks use changes its state there only. A graph asks the
        others once, as it does for gradients.
        """
        trainer = step.trainer
        variables = [] if trainer is None else state_of_layers(trainer)
        if not variables or not step.is_joint:
            return []
        mine = tuple(step.state())
        known = self._agreed.setdefault(trainer, {})
        if tf.executing_eagerly() or mine not in known:
            by_rank = self._collective.exchange("state of layers", mine)
            known[mine] = sorted({i for positions in by_rank for i in positions})
        return [variables[i] for i in known[mine]]
