"""`predict`: workers are set to batches ahead, and their rows come back in order."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.parameter_server.batches import as_tensors, spec_of
from tfdist.strategies.parameter_server.engine import Engine, Work
from tfdist.strategies.parameter_server.losses import naming_lost_servers
from tfdist.strategies.parameter_server.training import AHEAD


class BatchesAhead:
    """The batches of a `predict`, for which workers are set ahead.

    Args:
        batches: The batches.
    """

    def __init__(self, batches: tf.data.Dataset) -> None:
        self._batches = batches
        # Known when Keras has made the function that it calls for the batches.
        self.predicting: Predicting | None = None

    @property
    def element_spec(self) -> Any:
        """The spec of a batch."""
        return self._batches.element_spec

    def __iter__(self) -> Iterator[Any]:
        """Return predictions, in the order of the batches."""
        assert self.predicting is not None
        return self.predicting.ahead(iter(self._batches))


class Prediction:
    """The predictions of a batch, which a worker makes meanwhile."""

    def __init__(self, predicting: "Predicting", work: Work) -> None:
        self._predicting = predicting
        self._work = work

    def rows(self) -> Any:
        """Wait for the predictions and return them."""
        return self._predicting.wait_for(self._work)


class Predicting:
    """Lets the workers predict.

    Args:
        strategy: The strategy.
        trainer: The model.
    """

    def __init__(self, strategy: Any, trainer: Any) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._engine = Engine(strategy.coordinator, strategy.heartbeat)
        self._functions: dict[str, Any] = {}

    def __call__(self, data: list[Any]) -> Any:
        """Return the predictions of batches.

        Args:
            data: Batches, or `Prediction`s that were begun before.

        Returns:
            What the model returns for the rows of all of them.
        """
        begun = [
            one if isinstance(one, Prediction) else self.begin(one) for one in data
        ]
        outputs = [one.rows() for one in begun]
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(lambda *rows: tf.concat(rows, 0), *outputs)

    def ahead(self, batches: Iterator[Any]) -> Iterator[Prediction]:
        """Set the workers to batches before anybody asks for the predictions.

        Args:
            batches: The batches.

        Yields:
            A prediction for each, in their order.
        """
        begun: list[Prediction] = []
        limit = AHEAD * self._strategy.workers
        for batch in batches:
            begun.append(self.begin(batch))
            if len(begun) >= limit:
                yield begun.pop(0)
        yield from begun

    def begin(self, batch: Any) -> Prediction:
        """Set a worker to a batch.

        Args:
            batch: The batch.

        Returns:
            What the predictions can be had from.
        """
        batch = as_tensors(batch)
        spec = spec_of(batch)
        if str(spec) not in self._functions:
            function = tf.function(self._predict, autograph=False)
            self._functions[str(spec)] = function.get_concrete_function(spec)
        predict = self._functions[str(spec)]

        def call() -> Any:
            outputs = predict(batch)
            with tf.device(self._strategy.extended.chief):
                return tf.nest.map_structure(tf.identity, outputs)

        work = Work(lambda: call)
        self._engine.give(work)
        return Prediction(self, work)

    def abandon(self) -> None:
        """Forget the batches that nobody will ask for."""
        self._engine.drop()

    def wait_for(self, work: Work) -> Any:
        """Wait for a piece of work and return its result."""
        with naming_lost_servers(self._strategy.cluster, self._engine.drop):
            while not work.has_arrived:
                self._engine.take(wait=True)
        return work.result

    def _predict(self, batch: Any) -> Any:
        """Predict one batch."""
        return self._strategy.run(self._trainer.predict_step, args=(batch,))
