"""`predict` on the workers, with batches dispatched ahead and results in order."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.parameter_server.batch_codec import as_tensors, spec_of
from tfdist.strategies.parameter_server.dispatcher import AHEAD, Dispatcher, Work
from tfdist.strategies.parameter_server.servers import naming_lost_servers


class PredictFunction:
    """A replacement for a Keras predict function that dispatches batches."""

    def __init__(self, strategy: Any, trainer: Any) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._dispatcher = Dispatcher(strategy.coordinator, strategy.heartbeat)
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
        limit = AHEAD * self._strategy.workers
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
            with tf.device(self._strategy.extended.chief):
                return tf.nest.map_structure(tf.identity, outputs)

        work = Work(lambda: call)
        self._dispatcher.submit(work)
        return work

    def abandon(self) -> None:
        """Drop the batches in flight."""
        self._dispatcher.drop()

    def wait_for(self, work: Work) -> Any:
        """Wait for work and return its result."""
        with naming_lost_servers(self._strategy.cluster, self._dispatcher.drop):
            while not work.has_arrived:
                self._dispatcher.take(wait=True)
        return work.result

    def _predict(self, batch: Any) -> Any:
        return self._strategy.run(self._trainer.predict_step, args=(batch,))


class BatchesAhead:
    """The batches of a `predict` call, as an iterable of their work."""

    def __init__(self, batches: tf.data.Dataset, trainer: Any) -> None:
        self._batches = batches
        self._trainer = trainer
        self.element_spec = batches.element_spec

    def __iter__(self) -> Iterator[Work]:
        # Keras makes its predict function once, before it first iterates.
        function: PredictFunction = self._trainer.predict_function
        return function.ahead(iter(self._batches))
