"""Keras hooks of strategies with one replica per process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import Collective, name_in_graph
from tfdist.compat.keras.hooks import KerasHooks, StepHooks
from tfdist.compat.keras.learning_rates import accumulates
from tfdist.compat.keras.losses_and_metrics import Noted, noted_results
from tfdist.compat.keras.variables import note_raw
from tfdist.compat.patching import holding
from tfdist.compat.random_pipelines import seed_of
from tfdist.compat.user_warnings import warn_user
from tfdist.data.sharding import Shard, of_any_length, shard_of
from tfdist.gradients.reducer import GradientReducer
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.recorder.ring import StepKind
from tfdist.training.fit import RankFits
from tfdist.training.gradients import RankGradients
from tfdist.training.input import Feed
from tfdist.training.metrics import gather_rows, is_custom, join_rows, own_rows
from tfdist.training.state import (
    CreatedVariables,
    NotedState,
    follow_rows,
    put_back,
)
from tfdist.training.step import LoopStep, Step

# Steps with their outputs.
Made = list[tuple[Step, Any]]


class ReplicaHooks(RankGradients, StepHooks):
    """The step and gradient hooks of one replica."""

    step: Step | None = None

    def __init__(
        self, collective: Collective, reducer: GradientReducer, noted: NotedState
    ) -> None:
        super().__init__(collective, reducer, noted)
        # What `as_traced` has returned in the last step that was traced, and is to say
        # in the simulation of that step.
        self.decisions: list[bool] = []
        self.decisions_in_graph: Iterator[bool] | None = None

    @property
    def is_alone(self) -> bool:
        """True if there is no other replica."""
        return self._collective.size == 1

    def make_step(
        self, call: Callable[[Any], Any], shard: Shard, trainer: Any, *, is_joint: bool
    ) -> tuple[Step, Any]:
        """Run a step on a shard; return the step and its outputs.

        `trainer` is None in predictions. `is_joint` tells whether all ranks run this
        step.
        """
        has_rows = is_joint and not shard.stand_in
        is_uneven: Any = False
        if trainer is not None:
            has_rows &= not isinstance(shard.rows, tuple)
            if is_joint:
                shard, is_uneven = self._count_rows(shard, trainer)
        collective = self._collective if is_joint else None
        given = self.decisions_in_graph
        step = Step(shard, trainer, collective, has_rows=has_rows, decisions=given)
        with ExitStack() as stack:
            stack.enter_context(holding(self, "step", step))
            if trainer is not None and is_joint and not self.is_alone:
                note_raw(trainer)
                stack.enter_context(follow_rows(step, is_uneven, self.agreed_state))
            if trainer is not None and shard.stand_in:
                stack.enter_context(put_back(step))
            with step.compiled():
                is_predicting = is_joint and trainer is None
                data = of_any_length(shard.data) if is_predicting else shard.data
                outputs = call(data)
        self._numbers.ended(step)
        if not tf.executing_eagerly():
            self.decisions = step.decisions
        self._noted.add_apart(trainer, step.state())
        return step, outputs

    def _count_rows(self, shard: Shard, trainer: Any) -> tuple[Shard, Any]:
        """Count the rows of all ranks; return whether accumulated state needs them."""
        size, rows, own = self._collective.size, shard.rows, shard.own
        if isinstance(rows, tuple):
            name = name_in_graph("rows of the batch")
            rows, squares = self._collective.all_reduce([own, own * own], name=name)
            is_uneven = size * squares != rows * rows
            shard = shard._replace(rows=rows)
        else:
            is_uneven = rows % size != 0
        return shard, is_uneven if size > 1 and accumulates(trainer) else False

    @contextmanager
    def looping(self, args: Any) -> Iterator[None]:
        """Mark a call of `Strategy.run` in a custom loop."""
        step = LoopStep(args)
        with holding(self, "loop_step", step):
            yield
        self._numbers.ended(step)

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Note that a step, or a loop of the user's own, assigns a variable."""
        if self.is_updating:
            return
        if self.step is not None:
            self.step.note_assigned(variable, value)
        elif self.loop_step is not None and isinstance(variable, keras.Variable):
            self.loop_step.note_assigned(variable)
            self._noted.in_loops[id(variable)] = variable

    def draw_seed(self, draw: Callable[[], Any], state: Any) -> Any:
        """Draw seeds that differ between ranks in their replicas; rank 0's stays."""
        seed, rank = draw(), self._collective.rank
        is_same = self.is_updating or state is None
        if is_same or tf.distribute.in_cross_replica_context():
            return seed
        if self.step is not None:
            self.step.drawn.append(state)
        return seed_of(rank, seed) if rank else seed


class StrategyKerasHooks(ReplicaHooks, RankFits, KerasHooks):
    """The `KerasHooks` of strategies whose processes communicate by a collective."""

    # True if XLA may compile steps.
    can_compile = True

    def __init__(
        self, collective: Collective, reducer: GradientReducer, devices: int = 1
    ) -> None:
        ReplicaHooks.__init__(self, collective, reducer, NotedState())
        RankFits.__init__(self, collective, self._noted)
        self._feed = Feed(collective, devices)
        self.created = CreatedVariables(collective)
        # What checks the first step after each `compile`, if anything.
        self._first_step: Any = None
        # The current Keras call: its model, None in predictions, its name, and whether
        # all ranks make it together.
        self._call: tuple[Any, str, bool] | None = None

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._collective.rank

    @property
    def has_peers(self) -> bool:
        """True if other processes make the same Keras calls on their own rows."""
        return self._collective.size > 1

    @property
    def is_called(self) -> bool:
        """True if Keras, not a custom loop, calls `Strategy.run`."""
        return self._call is not None

    def distribute(self, adapter: Any) -> tf.data.Dataset:
        """Return this rank's `Shard`s of a Keras data adapter's batches."""
        return self._feed.distribute(adapter)

    def predicting(self, trainer: Any) -> AbstractContextManager[None]:
        """Mark a `predict` of a model, which starts from equal variables."""
        self.synchronize(trainer)
        return nullcontext()

    def run_function(
        self,
        trainer: Any,
        what: str,
        call: Callable[[], Any],
        *,
        is_joint: bool,
        is_first: bool = False,
    ) -> Any:
        """Call a model's function, on all ranks together if `is_joint`."""
        with holding(self, "_call", (trainer, what, is_joint)):
            if not is_joint:
                return call()
            with self._collective.call(StepKind(what)):
                try:
                    logs = call()
                except tf.errors.OpError as error:
                    raise self._feed.explained(error) from None
            self.created.start_late_equal()
        if trainer is not None:
            self.step_returned(trainer, what, logs)
        if is_first:
            self._check_first_step(trainer, what)
        return logs

    def check_by(self, check: Any) -> None:
        """Let a `FirstStepCheck` check the first steps after each `compile`."""
        self._first_step = check
        if self.rank == 0:
            self._feed.first_rows = check.rows

    def _check_first_step(self, trainer: Any, what: str) -> None:
        """Check the first step of a `fit` or `evaluate`, on the chief."""
        check = self._first_step
        if check is None:
            return
        text = check.difference(trainer, what) if self.rank == 0 else None
        if check.choice == "raise":
            (text, *_) = self._collective.exchange("the first step", text)
            if text:
                raise RuntimeError(text)
        elif text:
            warn_user(text)

    def states_between_steps(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return metric variables with their values over all ranks; none if unknown.

        Ranks exchange the states of a custom loop. The states of a model are known
        after `fit` and `evaluate`.
        """
        is_of_loop = any(id(variable) in self._noted.in_loops for variable in variables)
        states = self.states_of_all if is_of_loop else self._metrics.last_states
        return states(variables)

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap the optimizer of a float16 model in loss scaling."""
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")

    def run_step(self, call: Callable[[Any], Any], data: Any) -> Any:
        """Run a step of the current Keras call on a `Shard` or an uncut batch."""
        trainer, what, is_joint = self._called()
        shard = shard_of(data, is_joint=is_joint)
        if not is_joint:
            return self._run_step(call, shard)
        with self._collective.recorder.step(what, shard) as ended:
            outputs = self._run_step(call, shard)
            ended(outputs)
        return outputs

    def _run_step(self, call: Callable[[Any], Any], shard: Shard) -> Any:
        """Run a step of the current Keras call on a shard."""
        trainer, what, is_joint = self._called()
        known = self.created.count
        made, noted = self._make_steps(call, shard, trainer, is_joint=is_joint)
        if trainer is not None:
            logs = self._join_logs(trainer, made, noted)
            if is_joint:
                self.created.start_equal_since(known, trainer)
                share = tf.add_n([step.share() for step, _ in made])
                outputs = made[0][1]
                self._metrics.note_step(trainer, what, share, outputs, noted)
            return logs
        if not is_joint:
            return made[0][1]
        own = [own_rows(outputs, step.shard) for step, outputs in made]
        return gather_rows(join_rows(own), self._collective)

    def _make_steps(
        self, call: Callable[[Any], Any], shard: Shard, trainer: Any, *, is_joint: bool
    ) -> tuple[Made, Noted]:
        """Run a step on each device of this process: here, on one."""
        if trainer is None or not is_custom(trainer):
            return [self.make_step(call, shard, trainer, is_joint=is_joint)], []
        with noted_results(trainer) as noted:
            step = self.make_step(call, shard, trainer, is_joint=is_joint)
        return [step], noted

    def _join_logs(self, trainer: Any, made: Made, noted: Noted) -> Any:
        """Combine the outputs of this process's devices."""
        return made[0][1]

    def _called(self) -> tuple[Any, str, bool]:
        """Return the current Keras call."""
        if self._call is None:
            raise RuntimeError(
                "A step of fit, evaluate or predict must run in the function that "
                "Keras makes for it. Received: one of their batches, in another call "
                "of strategy.run. Let a make_train_function, make_test_function or "
                "make_predict_function of your own wrap what that of Keras makes."
            )
        return self._call
