"""Keras hooks that replace steps and predictions under parameter servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import keras
import tensorflow as tf

from tfdist.collectives.base import check_root_rank
from tfdist.compat.keras.compile_checks import check_built, synchronized_layers
from tfdist.compat.keras.hooks import KerasHooks
from tfdist.compat.keras.input import spec_of
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.random_pipelines import seed_of
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.strategies.parameter_server.batch_codec import as_tensors
from tfdist.strategies.parameter_server.dispatcher import AHEAD, Work
from tfdist.strategies.parameter_server.job import ServerJob
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

    def __init__(self, job: ServerJob) -> None:
        self._job = job
        # The model of the current `predict`.
        self._predicting: Any = None
        self._trainings: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @property
    def step(self) -> "SliceStep | None":
        """The step on a slice of a batch that is being traced, if any."""
        rows = self._job.rows
        return SliceStep(rows) if rows is not None and self._job.is_sync else None

    def function_of(self, trainer: Any, what: str, step: Any) -> Any:
        """Return the function that Keras calls for each step, or for predictions."""
        if what == "predict_step":
            _check_graph(trainer)
            return PredictFunction(self._job, trainer)
        check_trainer(trainer, self._job)
        is_training = what == "train_step"
        training = Training(self._job, trainer, step, is_training=is_training)
        # Weak references: compiling the model again drops its functions.
        self._trainings.setdefault(trainer, WeakSet()).add(training)
        return training

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

    def draw_seed(self, draw: Callable[[], Any], state: Any) -> Any:
        """Draw a seed that differs among steps that read the same state."""
        seed, rows = draw(), self._job.rows
        if state is None or rows is None:
            return seed
        # The number of the step. It is 0 for the first slice of a batch and for steps
        # in sequence, which therefore draw the same numbers as one process.
        return seed_of(rows[2], seed)

    def note_assigned(self, variable: Any, value: Any = None) -> None:
        """Refuse a step that assigns a variable of TensorFlow's."""
        if self._job.rows is not None and not isinstance(variable, keras.Variable):
            raise ValueError(
                "A step must assign only variables of Keras under parameter servers. "
                f"Received: the tf.Variable {variable.name!r}. Make it by add_weight "
                "or keras.Variable, with the aggregation 'mean' or 'sum'."
            )

    @contextmanager
    def fitting(self, trainer: Any, root_rank: int) -> Iterator[None]:
        """Mark a `fit` of a model, whose steps in flight are dropped if it fails."""
        check_root_rank(root_rank, 1)

        def abandon() -> None:
            for training in self._trainings.get(trainer, ()):
                training.abandon()

        # Callbacks and Keras itself access variables on the servers, too.
        with self._job.naming_lost_servers(abandon):
            yield


class SliceStep:
    """The step on a slice of a batch, which knows nothing of the other slices."""

    def __init__(self, rows: tf.Tensor) -> None:
        self._rows = rows

    def share(self) -> Any:
        """Return the share of the batch that the step has, a float64 scalar."""
        own, rows = tf.unstack(tf.cast(self._rows[:2], tf.float64))
        return own / rows

    def is_by_row(self, value: Any) -> bool:
        """Return whether the first dimension of a value is the rows of the slice."""
        # Lengths of batches are not static.
        return bool(value.shape.rank) and value.shape[0] is None

    def as_traced(self, decision: bool) -> bool:
        """Return a decision; this step is not simulated."""
        return decision

    def sum(self, value: Any, what: str) -> NoReturn:
        """Raise `ValueError`: slices of a batch cannot exchange values."""
        raise ValueError(
            "With consistency='sync' a loss must divide by the rows of its batch. "
            f"Received: {what}, which depends on all slices of a batch. Use "
            "the loss without a mask and with reduction='sum_over_batch_size', or "
            "AllReduceStrategy."
        )


class PredictFunction:
    """A replacement for a Keras predict function that dispatches batches."""

    def __init__(self, job: ServerJob, trainer: Any) -> None:
        self._job = job
        self._trainer = trainer
        self._dispatcher = job.dispatcher()
        self._functions: dict[str, Any] = {}

    def __call__(self, data: list[Any]) -> Any:
        """Return the outputs for batches, or for work that was begun before."""
        begun = [one if isinstance(one, Work) else self.begin(one) for one in data]
        outputs = [self.wait_for(work) for work in begun]
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(lambda *rows: tf.concat(rows, 0), *outputs)

    def ahead(self, batches: Iterator[Any]) -> Iterator[Work]:
        """Yield the work of each batch in order, with the next ones begun."""
        begun: list[Work] = []
        limit = AHEAD * self._job.workers
        for batch in batches:
            begun.append(self.begin(batch))
            if len(begun) >= limit:
                yield begun.pop(0)
        yield from begun

    def begin(self, batch: Any) -> Work:
        """Submit a batch and return its work."""
        batch = as_tensors(batch)
        spec = spec_of(batch)
        if str(spec) not in self._functions:
            function = tf.function(self._predict, autograph=False)
            self._functions[str(spec)] = function.get_concrete_function(spec)
        predict = self._functions[str(spec)]

        def call() -> Any:
            outputs = predict(batch)
            with tf.device(self._job.chief):
                return tf.nest.map_structure(tf.identity, outputs)

        work = Work(lambda: call)
        self._dispatcher.submit(work)
        return work

    def abandon(self) -> None:
        """Drop the batches in flight."""
        self._dispatcher.drop()

    def wait_for(self, work: Work) -> Any:
        """Wait for work and return its result."""
        with self._job.naming_lost_servers(self._dispatcher.drop):
            while not work.has_arrived:
                self._dispatcher.take(wait=True)
        return work.result

    def _predict(self, batch: Any) -> Any:
        return self._job.run(self._trainer.predict_step, args=(batch,))


class BatchesAhead:
    """The batches of a `predict` call, as an iterable of their work."""

    def __init__(self, batches: tf.data.Dataset, trainer: Any) -> None:
        self._batches = batches
        self._trainer = trainer
        self.element_spec = batches.element_spec

    def __iter__(self) -> Iterator[Work]:
        # Keras makes its predict function once, before it first iterates.
        return self._trainer.predict_function.ahead(iter(self._batches))


def check_trainer(trainer: Any, job: ServerJob) -> None:
    """Raise `ValueError` if a compiled model cannot be trained on parameter servers."""
    _check_graph(trainer)
    if layers := synchronized_layers(trainer):
        raise ValueError(
            "synchronized=True is not for parameter servers: workers do not "
            f"exchange values within a step. Received: the layer {layers[0]!r}. Use "
            "synchronized=False, or AllReduceStrategy."
        )
    steps, most = trainer.steps_per_execution, job.max_staleness
    if most is not None and steps > most + 1:
        raise ValueError(
            "steps_per_execution must be at most max_staleness + 1, because the steps "
            "that a worker makes in one go miss each other's updates. Received: "
            f"steps_per_execution={steps} with max_staleness={most}. Use "
            f"steps_per_execution={most + 1}, or a larger max_staleness."
        )
    if not job.is_sync and most != 0:
        for optimizer in optimizers_of(trainer):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                raise ValueError(
                    "A loss scale may change between a gradient and its update. "
                    f"Received: {optimizer.name!r} with consistency="
                    f"{job.consistency!r}. Use consistency='sync', or "
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
