"""Keras's iterator over epochs: this rank's shards, from any place in the data on."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from tfdist.compat.keras.data_adapters import (
    adapter_of,
    is_input_function,
    seeded,
    shares_batches,
)
from tfdist.compat.keras.hooks import any_hooks_of, hooks_of
from tfdist.compat.keras.positions import current_position


def patch() -> None:
    """Put it in the place of Keras's."""
    tf_trainer.TFEpochIterator = ShardIterator


class ShardIterator(tf_trainer.TFEpochIterator):  # type: ignore[misc]
    """Keras's iterator, over this rank's shards.

    Without a strategy of tfdist it is Keras's own.
    """

    data_adapter: Any
    # How many batches of an epoch were given out.
    steps = 0
    # The first epoch, if it begins in its midst.
    _begun: Iterator[Any] | None = None

    def __init__(
        self, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        hooks = hooks_of(distribute_strategy)
        position = current_position()
        x = kwargs.get("x")
        if is_input_function(x) and any_hooks_of(distribute_strategy) is not None:
            x = kwargs["x"] = distribute_strategy.distribute_datasets_from_function(x)
        with seeded(None if position is None else position.seed):
            if hooks is None:
                super().__init__(distribute_strategy, *args, **kwargs)
            else:
                if isinstance(x, tf.distribute.DistributedDataset):
                    kwargs["x"] = adapter_of(x, kwargs)
                EpochIterator.__init__(self, *args, **kwargs)
                self._distribute_strategy = distribute_strategy
                self._distribute(hooks)
        if position is not None:
            position.attach(self)

    def _distribute(self, hooks: Any) -> None:
        """Take this rank's part of the data."""
        self._distributed_dataset = hooks.distribute(self.data_adapter)
        is_dataset = isinstance(self._distributed_dataset, tf.data.Dataset)
        if is_dataset and isinstance(self.data_adapter, TFDatasetAdapter):
            # Ranks that were given parts of different lengths take equally many steps.
            self.data_adapter = TFDatasetAdapter(self._distributed_dataset)
            self._num_batches = self.data_adapter.num_batches

    def check_can_begin(self, *, within_epochs: bool) -> None:
        """Refuse data that cannot be read past.

        Args:
            within_epochs: Whether a `fit` may have been cut off in the midst of one.

        Raises:
            ValueError: If workers read for themselves, and would have to in part.
        """
        data = self._distributed_dataset
        is_read_elsewhere = getattr(data, "is_read_by_workers", False)
        if is_read_elsewhere and (within_epochs or self.steps_per_epoch):
            raise ValueError(
                "Data that workers read for themselves can be taken up again at the "
                "beginning of a dataset only. Received: BackupAndRestore with "
                f"save_freq {'in batches' if within_epochs else repr('epoch')} and "
                f"steps_per_epoch={self.steps_per_epoch}. Use save_freq='epoch' "
                "without steps_per_epoch, or let the chief read the data."
            )

    def begin_at(self, epochs: int, steps: int, num_batches: int | None) -> None:
        """Read past what an earlier `fit` has seen.

        What is drawn anew for each epoch, such as the order of a shuffle, is drawn for
        all of them. Of whole epochs one batch is read, or all of them if one epoch goes
        on where another has ended; of the last one all that was seen.

        Args:
            epochs: How many whole epochs were seen.
            steps: How many batches of the next one.
            num_batches: How many an epoch has, as the earlier one has counted them.
        """
        for _ in range(epochs):
            self._read_past_epoch()
            if self._num_batches is None and not self.steps_per_epoch:
                self._num_batches = num_batches
        if steps:
            self._begun = self._enumerate_from(steps)

    def _read_past_epoch(self) -> None:
        """Do to the data what an epoch does."""
        is_whole = bool(self.steps_per_epoch) or shares_batches(self.data_adapter)
        # Keras's own count of such data is too high: its epochs end with an error.
        is_counted = self.data_adapter.num_batches is not None
        with self.catch_stop_iteration():
            # Newer versions of Keras give the last step of an execution, too.
            for begin, *_, iterator in super()._enumerate_iterator():
                if begin == 0 or is_whole:
                    self._read(iterator)
                if not (is_whole or is_counted):
                    # Nobody would say that it has ended.
                    self.data_adapter.on_epoch_end()
                    return

    def _enumerate_from(self, steps: int) -> Iterator[Any]:
        """Return the rest of an epoch, of which some batches have been read."""
        epoch: Iterator[Any] = super()._enumerate_iterator()
        seen = 0
        while seen < steps:
            begin, *_, iterator = next(epoch)
            self._read(iterator)
            seen = begin + self.steps_per_execution
        return epoch

    def _read(self, iterator: Any) -> None:
        """Read for nothing what is for one execution."""
        if hasattr(iterator, "read_past"):
            iterator.read_past()
            return
        for number in range(self.steps_per_execution):
            try:
                next(iterator)
            except StopIteration:
                # The last execution of several steps may make fewer of them.
                if number == 0:
                    raise
                return

    def _enumerate_iterator(self) -> Iterator[Any]:
        """Return the batches of an epoch, of the first perhaps the rest."""
        begun, self._begun = self._begun, None
        for execution in super()._enumerate_iterator() if begun is None else begun:
            self.steps = execution[0] + self.steps_per_execution
            yield execution
