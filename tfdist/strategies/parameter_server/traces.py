"""What was traced of a step, by the kinds of its batches."""

from typing import Any

from tfdist.strategies.parameter_server.batches import (
    has_known_ranks,
    spec_of,
    without_missing,
)
from tfdist.strategies.parameter_server.step import PureStep
from tfdist.strategies.parameter_server.update import Update


class Traces:
    """Traces a step once for each kind of batch, on the thread of whoever asks.

    TensorFlow cannot trace on two threads at once.

    Args:
        strategy: The strategy.
        trainer: The model.
        step: Its `train_step` or `test_step`, as Keras calls it.
    """

    def __init__(self, strategy: Any, trainer: Any, step: Any) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._step = step
        self._updates: dict[str, Update] = {}
        # Where batches come from, and what was traced for all of them.
        self._source: Any = None
        self._common: Update | None = None

    def of(self, spec: Any) -> Update:
        """Return what steps of batches need.

        Args:
            spec: The spec of the batches, as `spec_of` returns it.
        """
        kind = str(spec)
        if kind not in self._updates:
            step = PureStep(self._strategy, self._trainer, self._step, spec)
            self._updates[kind] = Update(self._strategy, step)
        return self._updates[kind]

    def of_batch(self, iterator: Any, batch: Any) -> Update:
        """Return what the step of a batch needs.

        If the iterator tells what its batches are, it is the same for all of them, be
        they ragged or of different widths.

        Args:
            iterator: Where it comes from.
            batch: The batch, as tensors.
        """
        if iterator is not self._source:
            self._source, self._common = iterator, self._of_all(iterator)
        return self._common or self.of(spec_of(batch))

    def forget_source(self) -> None:
        """Let the iterator go from which the last batch has come."""
        self._source = self._common = None

    def _of_all(self, iterator: Any) -> Update | None:
        """Return what steps of all batches of an iterator need, if it says enough."""
        spec = getattr(iterator, "element_spec", None)
        if spec is None or not has_known_ranks(spec):
            return None
        return self.of(spec_of(without_missing(spec)))
