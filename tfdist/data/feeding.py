"""From the records of one rank to its batches: what all of tfdist.data ends in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.data.sharding import mark

_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Feeding:
    """How examples are handed on.

    Args:
        shuffle_buffer: Among how many examples the next one is drawn; 0 for none.
        seed: What is drawn from it differs in each epoch, and not in each run.
        cache: Whether parsed examples are kept in memory.
        deterministic: Whether a slow example holds up those after it.
    """

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
        """The seed for what is shuffled before examples are; None for nothing."""
        return self.seed if self.shuffle_buffer else None

    def batches(
        self,
        records: tf.data.Dataset,
        parse: Callable[..., Any] | None,
        batch_size: int,
        *,
        is_part: bool,
    ) -> tf.data.Dataset:
        """Shuffle, parse, batch and prefetch.

        Args:
            records: What this rank has.
            parse: Called in graph mode with each of them; None to leave them.
            batch_size: How many of them this rank takes in a step.
            is_part: Whether there are other ranks, who have others.
        """
        dataset = records
        # Records are mostly smaller than what they are parsed into.
        if not self.cache:
            dataset = self._shuffled(dataset)
        if parse is not None:
            dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        if self.cache:
            dataset = self._shuffled(dataset.cache())
        dataset = dataset.batch(batch_size).prefetch(_BATCHES_AHEAD)
        options = tf.data.Options()
        options.deterministic = self.deterministic
        # As many calls at a time as there are cores are as fast here. What looks for a
        # better number cannot be interrupted, and held each epoch up at its end.
        options.autotune.enabled = False
        dataset = dataset.with_options(options)
        return mark(dataset) if is_part else dataset

    def _shuffled(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        if not self.shuffle_buffer:
            return dataset
        return dataset.shuffle(self.shuffle_buffer, seed=self.seed)
