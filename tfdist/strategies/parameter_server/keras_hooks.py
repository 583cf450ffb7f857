"""What parameter servers do inside of Keras."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import check_root_rank
from tfdist.compat.keras import KerasHooks
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.strategies.parameter_server.checks import check_graph, check_trainer
from tfdist.strategies.parameter_server.inputs import WorkerInput
from tfdist.strategies.parameter_server.losses import naming_lost_servers
from tfdist.strategies.parameter_server.predicting import BatchesAhead, Predicting
from tfdist.strategies.parameter_server.training import Training
from tfdist.training.hooks import check_built

# As in tfdist.collectives.keys: neighbouring parts get distant numbers.
_SPREAD = 0x9E3779B1


class ServerKerasHooks(KerasHooks):
    """The answers to `tfdist.compat.keras.KerasHooks`.

    The chief alone runs Keras; workers run what it sends them. So nothing need be
    agreed on, and a step is that of one process, unless a batch was cut into parts.

    Args:
        strategy: The strategy.
    """

    rank = 0
    is_alone = False
    has_peers = False

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        # Rows of the part of a batch that is being traced, and of the whole batch.
        self._rows: tf.Tensor | None = None
        # The model of the `predict` that is going on, if one is.
        self._predicting: Any = None
        self._batches: BatchesAhead | None = None
        self._trainings: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def in_step(self) -> bool:
        """Whether a step is being traced that has a part of a batch only."""
        return self._rows is not None and bool(self._strategy.consistency == "sync")

    @contextmanager
    def computing(self, rows: tf.Tensor) -> Iterator[None]:
        """Mark the tracing of a step.

        Args:
            rows: See `PureStep.compute`.
        """
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None

    def function_of(self, trainer: Any, step: Any, *, is_training: bool) -> Any:
        """Return what Keras is to call for each step."""
        check_trainer(trainer, self._strategy)
        training = Training(self._strategy, trainer, step, is_training=is_training)
        # The model holds what Keras calls; a recompiled one drops it.
        self._trainings.setdefault(trainer, weakref.WeakSet()).add(training)
        return training

    def predict_function_of(self, trainer: Any) -> Any:
        """Return what Keras is to call for the batches of a prediction."""
        check_graph(trainer)
        predicting = Predicting(self._strategy, trainer)
        if self._batches is not None:
            self._batches.predicting = predicting
        return predicting

    def distribute(self, adapter: Any) -> Any:
        """Return the batches, which the chief sends to the workers, or they read."""
        batches = adapter.get_tf_dataset()
        if self._predicting is not None:
            if isinstance(batches, WorkerInput):
                raise ValueError(
                    "predict returns the predictions in the order of the data, which "
                    "several datasets do not have. Received: a function that makes the "
                    "dataset of each worker. Give predict the dataset itself."
                )
            batches = self._batches = BatchesAhead(batches)
            # Keras makes its function once, and then keeps it.
            if isinstance(self._predicting.predict_function, Predicting):
                batches.predicting = self._predicting.predict_function
        return batches

    @contextmanager
    def predicting(self, trainer: Any) -> Iterator[None]:
        """Mark a `predict` of a model, for whose batches workers are set ahead."""
        check_built(trainer)
        before = self._predicting, self._batches
        self._predicting, self._batches = trainer, None
        try:
            yield
        finally:
            if self._batches is not None and self._batches.predicting is not None:
                self._batches.predicting.abandon()
            self._predicting, self._batches = before

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap an optimizer that is to update a model in float16."""
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Call `result(logs)` when every step that was begun is in the metrics."""
        self.metrics_reset(trainer)
        for training in self._trainings.get(trainer, ()):
            if training.returned is logs:
                logs = training.read_logs()
        return result(logs)

    def metrics_reset(self, trainer: Any) -> None:
        """Let all that was begun be counted: the metrics of a model are reset next."""
        for training in self._trainings.get(trainer, ()):
            training.finish()

    def fold_seed(self, seed: Any) -> Any:
        """Make a random seed this step's own, where others may have drawn it too.

        The third number of the rows (see `PureStep.writer`) tells steps apart that read
        the same state. It is 0 for the first part of a batch and for a step that is
        alone with its version, which so draw what one process draws.
        """
        if self._rows is None:
            return seed
        spread = tf.bitwise.bitwise_and(self._rows[2] * _SPREAD, 0xFFFFFFFF)
        number = tf.cast(spread, seed.dtype)
        return tf.bitwise.bitwise_xor(seed, tf.stack([number, tf.zeros_like(number)]))

    def share(self) -> Any:
        """Return the share of the batch that a step has, a float64 scalar."""
        assert self._rows is not None
        own, rows = self._rows[0], self._rows[1]
        return tf.cast(own, tf.float64) / tf.cast(rows, tf.float64)

    def sum_over_ranks(self, value: Any, what: str) -> Any:
        """Refuse what the parts of a batch would have to tell each other."""
        del value
        raise ValueError(
            "With consistency='sync' a loss must divide by the rows of its batch. "
            f"Received: {what}, which is known only when all parts of a batch are. Use "
            "the loss without a mask and with reduction='sum_over_batch_size', or "
            "AllReduceStrategy."
        )

    @contextmanager
    def fitting(self, trainer: Any, root_rank: int) -> Iterator[None]:
        """Mark a `fit` of a model; what is under way when it fails is forgotten."""
        # There is one copy of the variables, which the chief's program uses.
        check_root_rank(root_rank, 1)

        def abandon() -> None:
            for training in self._trainings.get(trainer, ()):
                training.abandon()

        # Callbacks and Keras itself use what is on the servers, too.
        with naming_lost_servers(self._strategy.cluster, abandon):
            yield
