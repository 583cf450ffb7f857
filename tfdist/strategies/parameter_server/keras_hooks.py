"""Keras hooks that replace steps and predictions under parameter servers."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import check_root_rank
from tfdist.collectives.ops import SPREAD
from tfdist.compat.keras import KerasHooks
from tfdist.compat.keras.compile_checks import check_built, synchronized_layers
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.strategies.parameter_server.predict import BatchesAhead, PredictFunction
from tfdist.strategies.parameter_server.servers import naming_lost_servers
from tfdist.strategies.parameter_server.training import Training
from tfdist.strategies.parameter_server.worker_input import WorkerInput


class ServerKerasHooks(KerasHooks):
    """The `KerasHooks` of the chief, the only process that runs Keras.

    There is nothing to agree on, and a step is that of one process unless its batch was
    split.
    """

    rank = 0
    is_alone = False
    has_peers = False

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        # The `rows` of the step that is being traced, see `PureStep.compute`.
        self._rows: tf.Tensor | None = None
        # The model of the current `predict`.
        self._predicting: Any = None
        self._trainings: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def in_step(self) -> bool:
        """True while a step on a slice of a batch is traced."""
        return self._rows is not None and bool(self._strategy.consistency == "sync")

    @contextmanager
    def computing(self, rows: tf.Tensor) -> Iterator[None]:
        """Mark the trace of a step, for `rows` see `PureStep.compute`."""
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None

    def function_of(self, trainer: Any, step: Any, *, is_training: bool) -> Any:
        """Return the function that Keras calls for each step."""
        check_trainer(trainer, self._strategy)
        training = Training(self._strategy, trainer, step, is_training=is_training)
        # Weak references: compiling the model again drops its functions.
        self._trainings.setdefault(trainer, weakref.WeakSet()).add(training)
        return training

    def predict_function_of(self, trainer: Any) -> Any:
        """Return the function that Keras calls for the batches of a prediction."""
        _check_graph(trainer)
        return PredictFunction(self._strategy, trainer)

    def distribute(self, adapter: Any) -> Any:
        """Return the batches of a data adapter."""
        batches = adapter.get_tf_dataset()
        if self._predicting is None:
            return batches
        if isinstance(batches, WorkerInput):
            raise ValueError(
                "predict returns the predictions in the order of the data, which "
                "several datasets do not have. Received: a function that makes the "
                "dataset of each worker. Give predict the dataset itself."
            )
        return BatchesAhead(batches, self._predicting)

    @contextmanager
    def predicting(self, trainer: Any) -> Iterator[None]:
        """Mark a `predict` of a model, whose batches are dispatched ahead."""
        check_built(trainer)
        before, self._predicting = self._predicting, trainer
        try:
            yield
        finally:
            if isinstance(trainer.predict_function, PredictFunction):
                trainer.predict_function.abandon()
            self._predicting = before

    def scale_loss_of(self, optimizer: Any) -> Any:
        """Wrap an optimizer for a model in float16."""
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")

    def metrics_result(
        self, trainer: Any, result: Callable[[Any], Any], logs: Any
    ) -> Any:
        """Return `result(logs)` when all steps are applied."""
        self.metrics_reset(trainer)
        for training in self._trainings.get(trainer, ()):
            if training.returned is logs:
                logs = training.read_logs()
        return result(logs)

    def metrics_reset(self, trainer: Any) -> None:
        """Wait until all steps of a model are applied."""
        for training in self._trainings.get(trainer, ()):
            training.finish()

    def fold_seed(self, seed: Any) -> Any:
        """Make a random seed differ among steps that read the same state."""
        if self._rows is None:
            return seed
        # The number of the step. It is 0 for the first slice of a batch and for steps
        # in sequence, which therefore draw the same numbers as one process.
        spread = tf.bitwise.bitwise_and(self._rows[2] * SPREAD, 0xFFFFFFFF)
        number = tf.cast(spread, seed.dtype)
        return tf.bitwise.bitwise_xor(seed, tf.stack([number, tf.zeros_like(number)]))

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Refuse a step that assigns a variable of TensorFlow's."""
        if self._rows is not None and not isinstance(variable, keras.Variable):
            raise ValueError(
                "A step must assign only variables of Keras under parameter servers. "
                f"Received: the tf.Variable {variable.name!r}. Make it by add_weight "
                "or keras.Variable, with the aggregation 'mean' or 'sum'."
            )

    def share(self) -> Any:
        """Return the share of the batch that a step has, a float64 scalar."""
        assert self._rows is not None
        own, rows = self._rows[0], self._rows[1]
        return tf.cast(own, tf.float64) / tf.cast(rows, tf.float64)

    def sum_over_ranks(self, value: Any, what: str) -> Any:
        """Raise `ValueError`: slices of a batch cannot exchange values."""
        raise ValueError(
            "With consistency='sync' a loss must divide by the rows of its batch. "
            f"Received: {what}, which depends on all slices of a batch. Use "
            "the loss without a mask and with reduction='sum_over_batch_size', or "
            "AllReduceStrategy."
        )

    @contextmanager
    def fitting(self, trainer: Any, root_rank: int) -> Iterator[None]:
        """Mark a `fit` of a model, whose steps in flight are dropped if it fails."""
        check_root_rank(root_rank, 1)

        def abandon() -> None:
            for training in self._trainings.get(trainer, ()):
                training.abandon()

        # Callbacks and Keras itself access variables on the servers, too.
        with naming_lost_servers(self._strategy.cluster, abandon):
            yield


def check_trainer(trainer: Any, strategy: Any) -> None:
    """Raise `ValueError` if a compiled model cannot be trained on parameter servers."""
    _check_graph(trainer)
    if layers := synchronized_layers(trainer):
        raise ValueError(
            "synchronized=True is not for parameter servers: workers do not "
            f"exchange values within a step. Received: the layer {layers[0]!r}. Use "
            "synchronized=False, or AllReduceStrategy."
        )
    steps, most = trainer.steps_per_execution, strategy.max_staleness
    if most is not None and steps > most + 1:
        raise ValueError(
            "steps_per_execution must be at most max_staleness + 1, because the steps "
            "that a worker makes in one go miss each other's updates. Received: "
            f"steps_per_execution={steps} with max_staleness={most}. Use "
            f"steps_per_execution={most + 1}, or a larger max_staleness."
        )
    if strategy.consistency != "sync" and most != 0:
        for optimizer in optimizers_of(trainer):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                raise ValueError(
                    "A loss scale may change between a gradient and its update. "
                    f"Received: {optimizer.name!r} with consistency="
                    f"{strategy.consistency!r}. Use consistency='sync', or "
                    "mixed_bfloat16, which needs no loss scale."
                )


def _check_graph(trainer: Any) -> None:
    """Raise `ValueError` if a model's steps cannot run as a graph on a worker."""
    if trainer.run_eagerly:
        raise ValueError(
            "run_eagerly=True is not for parameter servers: workers run graphs, not "
            f"Python. Received: the model {trainer.name!r}, compiled with "
            "run_eagerly=True. Debug on one process, without a strategy."
        )
    if trainer.jit_compile is True:
        raise ValueError(
            "jit_compile=True is not for parameter servers: XLA cannot compile "
            f"reads from a server. Received: the model {trainer.name!r}. Compile it "
            "with jit_compile='auto'."
        )
