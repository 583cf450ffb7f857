"""What a strategy of several processes does inside of Keras."""

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.compat.keras import data_adapters
from tfdist.compat.tensorflow import global_seed
from tfdist.data.sharding import Shard, cut_rows, rows_of
from tfdist.gradients import GradientReducer, weigh
from tfdist.strategies.naming import name_in_graph
from tfdist.strategies.pipeline import own_part, shard_global, shard_own
from tfdist.strategies.state import put_back, reduce_metrics, start_equal

# As in tfdist.collectives.keys: neighbouring ranks get distant numbers.
_SPREAD = 0x9E3779B1


class StrategyKerasHooks:
    """The answers to `tfdist.compat.keras.KerasHooks`.

    Args:
        collective: How the processes talk.
        reducer: How gradients travel.
    """

    def __init__(self, collective: Collective, reducer: GradientReducer) -> None:
        self._collective = collective
        self._reducer = reducer
        # The shard that the step being traced, or run eagerly, works on.
        self._shard: Shard | None = None
        self._are_reduced = False
        self._data_error: Exception | None = None
        self._started: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self._collective.rank

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self._collective.size == 1

    @property
    def in_step(self) -> bool:
        """Whether a step of Keras is being traced, or run eagerly."""
        return self._shard is not None

    def is_keras_step(self, fn: Any, args: Sequence[Any]) -> bool:
        """Say whether Keras, and not a custom loop, calls `Strategy.run`."""
        if self.is_alone or len(args) != 1:
            return False
        return isinstance(args[0], Shard) or (_trainer_of(fn, "train_step") is not None)

    def run_step(self, fn: Any, call: Callable[[Any], Any], data: Any) -> Any:
        """Run a step of Keras on this rank's rows.

        Args:
            fn: The step: a method of a model, or Keras's wrapper around prediction.
            call: Runs it on a batch.
            data: A `Shard`; or a batch of this rank's own (`train_on_batch`).

        Returns:
            What the step returns; for predictions, those of all ranks.
        """
        trainer = _trainer_of(fn, "train_step", "test_step")
        is_training = _trainer_of(fn, "train_step") is not None
        if not isinstance(data, Shard):
            data = Shard(data, (), rows_of(data), ())
        if is_training and isinstance(data.rows, tuple):
            name = name_in_graph("rows of the batch")
            data = data._replace(
                rows=self._collective.all_reduce([data.own], name=name)[0]
            )
        undo: AbstractContextManager[None] = nullcontext()
        if trainer is not None and data.stand_in:
            undo = put_back(trainer, data.stand_in[0])
        with self._working_on(data), undo:
            outputs = call(data.data)
        if trainer is not None:
            return outputs
        return tf.nest.map_structure(
            lambda rows: self._collective.all_gather(
                cut_rows(rows, 0, data.own), name=name_in_graph("predictions")
            ),
            outputs,
        )

    def distribute(self, adapter: Any) -> tf.data.Dataset:
        """Return this rank's `Shard`s of what a Keras data adapter holds."""
        dataset = self._shuffled_alike(adapter)
        if data_adapters.holds_dataset(adapter):
            own = own_part(dataset, self._collective)
            if own is not None:
                return shard_own(own, self._collective)
        return shard_global(
            dataset,
            self._collective,
            self._check_fingerprint,
            may_be_empty=data_adapters.may_leave_ranks_empty(
                adapter, self._collective.size
            ),
        )

    def build(self, trainer: Any, *, is_single_step: bool) -> None:
        """Start a model from equal states; for single steps only the first time."""
        optimizer = trainer.optimizer
        if is_single_step and self._started.get(trainer) == id(optimizer):
            return
        self._started[trainer] = id(optimizer)
        self.synchronize(trainer)

    def synchronize(self, trainer: Any) -> None:
        """Give all ranks rank 0's variables of a model."""
        if not trainer.built:
            raise ValueError(
                f"The model {trainer.name!r} has no weights to predict with. Received: "
                "predict on a model that is not built. Call model.build, fit or "
                "evaluate first, or load weights."
            )
        start_equal(trainer, self._collective)

    @contextmanager
    def joint_call(self, what: str) -> Iterator[None]:
        """Mark a call that all ranks make together."""
        with self._collective.call(what):
            try:
                yield
            except tf.errors.OpError:
                if self._data_error is not None:
                    raise self._data_error from None
                raise

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Fill in gradients that only other ranks have."""
        if self._are_reduced:
            return list(gradients)
        return self._reducer.complete(gradients, variables, "the optimizer")

    def weigh_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Weigh gradients by this rank's share of the global batch.

        In a custom loop they are left alone: there the user divides the loss by the
        global batch size, as everywhere in tf.distribute.
        """
        if self._are_reduced or self._shard is None:
            return list(gradients)
        return weigh(gradients, self._shard.own, self._shard.rows)

    def reduce_gradients(
        self, gradients: Sequence[Any], *, is_weighed: bool = False
    ) -> list[Any]:
        """Weigh gradients, unless they are, and sum them over ranks."""
        if self._are_reduced:
            return list(gradients)
        if not is_weighed:
            gradients = self.weigh_gradients(gradients)
        return self._reducer.reduce(gradients, name_in_graph("gradients"))

    @contextmanager
    def gradients_are_reduced(self) -> Iterator[None]:
        """Mark a block in which an optimizer gets gradients that are already sums."""
        self._are_reduced = True
        try:
            yield
        finally:
            self._are_reduced = False

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` with the metric states of all ranks."""
        return reduce_metrics(trainer, self._collective, result, logs)

    def fold_seed(self, seed: Any) -> Any:
        """Make a random seed this rank's own, within steps; rank 0's stays."""
        if self._shard is None or self.rank == 0:
            return seed
        spread = (self.rank * _SPREAD) & 0xFFFFFFFF
        return tf.bitwise.bitwise_xor(seed, tf.constant([spread, 0], seed.dtype))

    @contextmanager
    def _working_on(self, shard: Shard) -> Iterator[None]:
        """Let the hooks know the shard of the step."""
        self._shard = shard
        try:
            yield
        finally:
            self._shard = None

    def _shuffled_alike(self, adapter: Any) -> tf.data.Dataset:
        """Return an adapter's dataset, whose permutations all ranks share."""
        if data_adapters.shuffles_batches(adapter):
            # The user's own seed gives equal states, which are left alone.
            states = self._collective.exchange(
                "random states", hash(random.getstate()) % 2**61
            )
            if len(set(states)) > 1:
                data_adapters.agree_on_batches(states[0])
        if data_adapters.shuffles_arrays(adapter):
            draw = random.SystemRandom().getrandbits(31)
            seeds = self._collective.exchange("shuffle seeds", [global_seed(), draw])
            if len({seed for seed, _ in seeds}) > 1 or seeds[0][0] is None:
                with data_adapters.agreed_permutations(seeds[0][1]):
                    return adapter.get_tf_dataset()
        return adapter.get_tf_dataset()

    def _check_fingerprint(self, fingerprint: int) -> None:
        """Refuse datasets that are not the same on every rank."""
        fingerprints = self._collective.exchange(
            "first batches", fingerprint, joint=False
        )
        if len(set(fingerprints)) > 1:
            others = [r for r, f in enumerate(fingerprints) if f != fingerprints[0]]
            self._data_error = RuntimeError(
                "The ranks do not see the same data: the first batch of rank "
                f"{others[0]} is not that of rank 0. Received: a dataset that is "
                "shuffled, filtered or sharded in another way on each rank. Give "
                "every rank the whole dataset and every random operation of it a "
                "seed (dataset.shuffle(..., seed=1)), or shard it yourself and pass "
                "it through strategy.distribute_datasets_from_function."
            )
            raise self._data_error


def _trainer_of(fn: Any, *names: str) -> Any:
    """Return the model whose step a function is, if it is one of those."""
    trainer = getattr(fn, "__self__", None)
    is_step = isinstance(trainer, keras.Model) and fn.__name__ in names
    return trainer if is_step else None
