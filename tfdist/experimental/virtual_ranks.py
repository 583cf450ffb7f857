"""Steps over fixed parts of the global batch, with the same bits on any processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf

from tfdist.collectives.base import Collective, name_in_graph
from tfdist.compat.keras.compile_checks import normalizing_layers
from tfdist.compat.keras.hooks import GradientPlan, any_hooks_of_model
from tfdist.compat.patching import holding
from tfdist.compat.random_pipelines import seed_of
from tfdist.compat.tensorflow import global_seed, has_started
from tfdist.data.sharding import Shard, part_of, shard_of, share
from tfdist.gradients.tree import TreeReducer, sum_parts
from tfdist.training.hooks import StrategyKerasHooks
from tfdist.training.metrics import MetricsOfRanks, is_custom
from tfdist.training.step import Step, current_graph

_THREADS = 1


class Arithmetic(NamedTuple):
    """All that bits depend on: the parts of a batch, the threads of a process."""

    parts: int
    threads: int

    def __str__(self) -> str:
        are_many = "" if self.threads == 1 else "s"
        return (
            f"virtual_ranks={self.parts} and {self.threads} intra-op thread{are_many}"
        )


class VirtualRankHooks(StrategyKerasHooks):
    """The `KerasHooks` of a strategy whose bits do not depend on the processes.

    The global batch is cut into a fixed number of parts. A rank computes its parts one
    after the other; one binary tree adds up gradients and metrics of all parts.
    """

    # Its code adds in another order.
    can_compile = False

    def __init__(
        self, collective: Collective, reducer: TreeReducer, arithmetic: Arithmetic
    ) -> None:
        super().__init__(collective, reducer, arithmetic.parts // collective.size)
        self._metrics = WholeMetrics(collective)
        self.arithmetic = arithmetic

    @property
    def is_alone(self) -> bool:
        """False: also a single process has several parts."""
        return False

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Refuse a model whose bits would differ, then give all ranks equal states."""
        check_model(trainer)
        super().build(trainer, is_single_step=is_single_step)

    @contextmanager
    def looping(self, args: Any) -> Iterator[None]:
        """Refuse a custom loop."""
        raise ValueError(
            "virtual_ranks cuts the batches of fit and evaluate. Received: a call of "
            "strategy.run in a loop of your own. Train by fit, or leave virtual_ranks "
            "out."
        )
        yield

    def run_step(self, call: Callable[[Any], Any], data: Any) -> Any:
        """Run a step of the current Keras call on each part of this rank's rows."""
        trainer, what, is_joint = self._called()
        if trainer is None:
            return super().run_step(call, data)
        shard = shard_of(data, is_joint=is_joint)
        _check_cut(shard, is_joint=is_joint)
        known = self.created.count
        is_training = what == "train_step" and trainer.optimizer is not None
        weights = trainer.trainable_variables if is_training else []
        metrics = [*{id(v): v for v in trainer.metrics_variables}.values()]
        before = [tf.identity(v.value) for v in metrics]
        parts = Parts(self, call, shard, trainer, weights, metrics)
        gradients, counts = parts.sums(self.arithmetic.parts, self._collective)
        name = name_in_graph("gradients")
        sums = self._reducer.reduce(GradientPlan(gradients), name, beside=counts)
        for variable, start, total in zip(
            metrics, before, sums[len(weights) :], strict=True
        ):
            variable.assign(start + total)
        if parts.given is not None:
            self._apply(trainer, zip(sums, weights, strict=False), parts.given)
        self.created.start_equal_since(known, trainer)
        return trainer.get_metrics_result()

    def _apply(self, trainer: Any, sums: Any, given: set[int]) -> None:
        """Apply the sums of gradients, None for weights that the loss does not use."""
        pairs = [(total if id(v) in given else None, v) for total, v in sums]

        @tf.autograph.experimental.do_not_convert
        def apply() -> None:
            trainer.optimizer.apply_gradients(pairs)

        step = Step(Shard(None, 1, 1, ()), trainer, self._collective, has_rows=True)
        with holding(self, "step", step), self.gradients_are_reduced():
            tf.distribute.Strategy.run(trainer.distribute_strategy, apply)

    def draw_seed(self, draw: Callable[[], Any], state: Any) -> Any:
        """Draw a seed that differs between parts, and refuse operations without one."""
        if not isinstance(self.step, PartStep):
            return super().draw_seed(draw, state)
        if state is None:
            where = tf.compat.v1.get_default_graph().get_name_scope()
            where = where.rpartition("while/")[2]
            raise ValueError(
                "With virtual_ranks, random numbers must come from keras.random or a "
                f"layer of Keras. Received: an operation of tf.random in {where!r}, "
                "whose numbers depend on how often a process has run it. Use "
                "keras.random with a keras.random.SeedGenerator."
            )
        self.step.rewind(state)
        return seed_of(self.step.number, draw())


def arithmetic_of(model: Any) -> str | None:
    """Describe what a model's bits depend on instead of the processes, if anything."""
    hooks = any_hooks_of_model(model)
    return str(hooks.arithmetic) if isinstance(hooks, VirtualRankHooks) else None


class WholeMetrics(MetricsOfRanks):
    """Metrics whose variables hold the counts of all ranks after each step."""

    def states_of_all(self, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return no other values than those of the variables."""
        return []


class PartStep(Step):
    """A step over one part of the global batch, which gets nothing of other parts.

    `number` is that of the part among all ranks. `seeds` are the states of generators
    at the start of the step, by id; each part starts from them.
    """

    def __init__(
        self,
        shard: Shard,
        trainer: Any,
        number: Any,
        seeds: dict[int, Any],
        outer: Any,
    ) -> None:
        super().__init__(shard, trainer, None, has_rows=not shard.stand_in)
        self.number = number
        self._seeds, self._outer = seeds, outer
        self._drawn: set[int] = set()

    @property
    def is_joint(self) -> bool:
        """True, so that layers ask for the other rows, and are refused."""
        return True

    def sum(self, value: Any, what: str) -> NoReturn:
        """Refuse a loss that needs the weights or mask of other parts."""
        raise ValueError(
            "With virtual_ranks, a loss must be a mean over rows. Received: a loss "
            "that divides by the sum of a mask, or of weights, over the whole batch. "
            "Use reduction='sum_over_batch_size' without a mask, or 'sum', or leave "
            "virtual_ranks out."
        )

    def all_reduce(self, values: Sequence[Any], *, is_mean: bool) -> NoReturn:
        """Refuse a layer that computes from the whole batch."""
        raise ValueError(
            "With virtual_ranks, a layer must compute each row by itself. Received: "
            "one that reduces over replicas, as synchronized normalization does. Use "
            "LayerNormalization or GroupNormalization, or leave virtual_ranks out."
        )

    def all_gather(self, value: Any, axis: int) -> NoReturn:
        """Refuse a layer that gathers the rows of the whole batch."""
        self.all_reduce([value], is_mean=False)

    def rewind(self, state: Any) -> None:
        """Return a generator to its state before the step, before its first draw."""
        if id(state) in self._drawn:
            return
        self._drawn.add(id(state))
        if id(state) not in self._seeds:
            with _within(self._outer):
                self._seeds[id(state)] = tf.identity(state.value)
        with _within(self._graph):
            state.assign(self._seeds[id(state)])

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Note that the part assigns a variable, whatever the value."""
        super().note_assigned(variable)

    def check_assigned(self, metrics: Sequence[Any]) -> None:
        """Refuse a layer that has assigned anything but the state of a generator."""
        known = {*self._drawn, *(id(variable) for variable in metrics)}
        others = [v for key, v in self.assigned.items() if key not in known]
        if others:
            raise ValueError(
                "With virtual_ranks, a layer must not change in a step. Received: one "
                f"that assigns {others[0].path}. Leave the layer out, or leave "
                "virtual_ranks out."
            )


class Parts:
    """The parts of one rank's rows in a step, and the sums over them."""

    def __init__(
        self,
        hooks: VirtualRankHooks,
        call: Callable[[Any], Any],
        shard: Shard,
        trainer: Any,
        weights: Sequence[Any],
        metrics: Sequence[Any],
    ) -> None:
        self._hooks, self._call, self._shard = hooks, call, shard
        self._trainer, self._weights, self._metrics = trainer, weights, metrics
        # The ids of weights with gradients, once the optimizer has got some.
        self.given: set[int] | None = None
        self._seeds: dict[int, Any] = {}
        self._graph = current_graph()

    def sums(self, count: int, ranks: Collective) -> tuple[list[Any], list[Any]]:
        """Return the sums of gradients and of metrics' counts over the rank's parts."""
        own = count // ranks.size
        start = share(self._shard.rows, ranks.rank, ranks.size)[0]

        def part(number: Any) -> list[Any]:
            first, stop = share(self._shard.rows, number, count)
            rows = part_of(self._shard, first - start, stop - start)
            return self._values(rows, number)

        first = tf.constant(ranks.rank * own, tf.int64)
        like = [*self._weights, *self._metrics]
        sums = sum_parts(part, own.bit_length() - 1, first, like)
        return sums[: len(self._weights)], sums[len(self._weights) :]

    def _values(self, shard: Shard, number: Any) -> list[Any]:
        """Run the step on one part; return its weighed gradients, and its counts."""
        step = PartStep(shard, self._trainer, number, self._seeds, self._graph)
        by_id: dict[int, Any] = {}

        def collect(grads_and_vars: Any) -> None:
            pairs = [(g, v) for g, v in grads_and_vars if g is not None]
            by_id.update({id(v): tf.convert_to_tensor(g) for g, v in pairs})
            self.given = {*by_id}

        def weigh(loss: Any) -> Any:
            # Cheaper than to multiply the gradients of all weights, as without parts.
            return loss * tf.cast(step.share(), loss.dtype)

        for variable in self._metrics:
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        optimizer = self._trainer.optimizer
        with ExitStack() as stack:
            stack.enter_context(holding(self._hooks, "step", step))
            if self._weights:
                scale = optimizer.scale_loss
                stack.enter_context(holding(optimizer, "apply_gradients", collect))
                stack.enter_context(
                    holding(optimizer, "scale_loss", lambda loss: weigh(scale(loss)))
                )
            self._call(shard.data)
        step.check_assigned(self._metrics)
        values = [
            by_id[id(v)] if id(v) in by_id else tf.zeros(v.shape, v.dtype)
            for v in self._weights
        ]
        values += [tf.identity(v.value) for v in self._metrics]
        if shard.stand_in:
            # Even a weight of 0 leaves NaN where the gradients of the stand-in have it.
            (is_empty,) = shard.stand_in
            values = tf.cond(
                is_empty,
                lambda: [*map(tf.zeros_like, values)],
                lambda: [*map(tf.identity, values)],
            )
        return values


def fix_threads() -> int:
    """Fix the number of intra-op threads, on which sums depend, and return it."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    if threads == 0 and has_started():
        raise RuntimeError(
            "virtual_ranks fixes the number of intra-op threads, so the strategy must "
            "be made before TensorFlow runs its first operation. Received: a "
            "TensorFlow that has already started. Make the strategy first thing in the "
            "program, before any tensor, dataset, layer or model."
        )
    if threads == 0:
        threads = _THREADS
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()
    return threads


def check_virtual_ranks(count: Any, compression: str, shard_optimizer: bool) -> None:
    """Raise `ValueError` unless a number of parts is possible on some processes."""
    if not isinstance(count, int) or count < 1 or count & (count - 1):
        raise ValueError(
            "virtual_ranks must be a power of two. Received: virtual_ranks="
            f"{count!r}. Use 8, or the largest number of processes you will use."
        )
    if compression != "none":
        raise ValueError(
            "virtual_ranks sends gradients as they are. Received: virtual_ranks="
            f"{count} with compression={compression!r}. Leave one of them out."
        )
    if shard_optimizer:
        raise ValueError(
            "virtual_ranks keeps the whole optimizer on each process. Received: "
            f"virtual_ranks={count} with shard_optimizer=True. Leave one of them out."
        )


def check_ranks(arithmetic: Arithmetic, collective: Collective) -> None:
    """Raise an error unless the processes can share the parts, and agree on them."""
    size, count = collective.size, arithmetic.parts
    if size & (size - 1) or count % size:
        raise ValueError(
            "virtual_ranks must be a multiple of the number of processes, which must "
            f"be a power of two. Received: virtual_ranks={count} on {size} processes. "
            f"Start as many processes as a power of two up to {count}."
        )
    by_rank = collective.exchange("virtual ranks", [*arithmetic])
    if any([*one] != [*by_rank[0]] for one in by_rank):
        raise RuntimeError(
            "The ranks have different virtual_ranks or numbers of intra-op threads. "
            f"Received: {by_rank}, by rank. Give the same on every rank."
        )


def check_model(trainer: Any) -> None:
    """Raise `ValueError` for a model whose bits depend on the number of processes."""
    layers = normalizing_layers(trainer)
    metrics = [v.path for v in trainer.metrics_variables if v.aggregation != "sum"]
    problem = remedy = ""
    if global_seed() is None:
        problem = "a program without a seed"
        remedy = "Call keras.utils.set_random_seed(1) before you make the model."
    elif is_custom(trainer):
        problem = f"a step of its own in the model {trainer.name!r}"
        remedy = "Use Keras's train_step, test_step and compute_metrics."
    elif layers:
        problem = f"batch normalization in {layers[0]!r}"
        remedy = "Use LayerNormalization or GroupNormalization, or freeze the layer."
    elif trainer.jit_compile:
        problem = f"jit_compile=True in the model {trainer.name!r}"
        remedy = "Leave jit_compile out."
    elif metrics:
        problem = f"a metric whose variable {metrics[0]!r} is not a sum over rows"
        remedy = "Leave the metric out, or give its variables aggregation='sum'."
    if problem:
        raise ValueError(
            "With virtual_ranks, a model must have the same bits on any number of "
            f"processes. Received: {problem}. {remedy}"
        )


def _check_cut(shard: Shard, *, is_joint: bool) -> None:
    """Raise `ValueError` for rows that are not known to be of one global batch."""
    if isinstance(shard.rows, tuple) or not is_joint:
        raise ValueError(
            "virtual_ranks cuts global batches into parts. Received: a batch of "
            "train_on_batch or test_on_batch, or a dataset that is sharded already. "
            "Call fit or evaluate with the whole data, without an AutoShardPolicy."
        )


def _within(graph: Any) -> AbstractContextManager[Any]:
    """Return a context in which operations belong to a graph, if there is one."""
    return nullcontext() if graph is None else graph.as_default()
