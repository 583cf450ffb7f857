"""The pipeline from the records of one rank to its batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.data.sharding import mark

_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Feeding:
    """Options of the pipeline; see `tfrecord_dataset`."""

    shuffle_buffer: int
    seed: int
    cache: bool
    deterministic: bool

    def __post_init__(self) -> None:
        if self.shuffle_buffer < 0:
            raise ValueError(
                "shuffle_buffer must not be negative. Received: "
                f"shuffle_buffer={self.shuffle_buffer}. It is a number of examples; "
                "use 0 to leave them in order."
            )

    @property
    def piece_seed(self) -> int | None:
        """The seed of the shuffle before that of examples; None to keep the order."""
        return self.seed if self.shuffle_buffer else None

    def batches(
        self,
        records: tf.data.Dataset,
        parse: Callable[..., Any] | None,
        batch_size: int,
        *,
        is_part: bool,
    ) -> tf.data.Dataset:
        """Shuffle, parse, batch and prefetch records; mark a rank's part as such."""
        dataset = records
        # Records are usually smaller than parsed examples.
        if not self.cache:
            dataset = self._shuffled(dataset)
        if parse is not None:
            dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        if self.cache:
            dataset = self._shuffled(dataset.cache())
        dataset = dataset.batch(batch_size).prefetch(_BATCHES_AHEAD)
        options = tf.data.Options()
        options.deterministic = self.deterministic
        # One call per core is as fast here. Autotuning cannot be interrupted, and
        # delayed the end of each epoch.
        options.autotune.enabled = False
        dataset = dataset.with_options(options)
        return mark(dataset) if is_part else dataset

    def _shuffled(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        if not self.shuffle_buffer:
            return dataset
        return dataset.shuffle(self.shuffle_buffer, seed=self.seed)
