"""Keras's data adapters and epoch iterator for one rank's shards, resumable."""

import functools
import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum, auto
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.trainers.data_adapters import py_dataset_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from tfdist.compat.keras.hooks import any_hooks_of, hooks_of, hooks_of_model
from tfdist.compat.keras.positions import current_position
from tfdist.compat.patching import holding
from tfdist.compat.tensorflow import global_seed, has_cache


class ShardIterator(tf_trainer.TFEpochIterator):
    """Keras's epoch iterator over this rank's shards; unchanged without tfdist."""

    data_adapter: Any
    # The model that is being trained or evaluated.
    trainer: Any = None
    # Number of batches of this epoch handed out so far.
    steps = 0
    # The rest of the first epoch, if it resumes within one.
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
            # Ranks with parts of different lengths run equally many steps.
            self.data_adapter = TFDatasetAdapter(self._distributed_dataset)
            self._num_batches = self.data_adapter.num_batches

    @contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """End an epoch like Keras, then synchronize the state of layers."""
        with super().catch_stop_iteration():
            yield
        hooks = hooks_of_model(self.trainer)
        if hooks is not None:
            hooks.epoch_ended(self.trainer)

    def check_can_begin(self, *, within_epochs: bool) -> None:
        """Raise if workers read the data, which then cannot resume within a dataset."""
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
        """Skip the epochs and steps of an earlier `fit`, with their random draws."""
        # `num_batches` is the length of an epoch as the earlier `fit` counted it. Of a
        # whole epoch one batch is read, or all of them if epochs share one stream of
        # batches; all of the first epoch, too, if it fills a cache.
        for number in range(epochs):
            self._read_past_epoch(fills_cache=number == 0 and self._has_cache())
            if self._num_batches is None and not self.steps_per_epoch:
                self._num_batches = num_batches
        if steps:
            self._begun = self._enumerate_from(steps)

    def _has_cache(self) -> bool:
        """Return whether the data is a dataset with a cache."""
        if not holds_dataset(self.data_adapter):
            return False
        data = self.data_adapter.get_tf_dataset()
        return isinstance(data, tf.data.Dataset) and has_cache(data)

    def _read_past_epoch(self, *, fills_cache: bool) -> None:
        """Advance the data by one epoch."""
        is_shared = bool(self.steps_per_epoch) or shares_batches(self.data_adapter)
        is_whole = is_shared or fills_cache
        # Keras's own `_num_batches` may be too high, since StopIteration ends epochs
        # of data without a count.
        is_counted = self.data_adapter.num_batches is not None
        with super().catch_stop_iteration():
            # Newer versions of Keras also yield the last step of an execution.
            for begin, *_, iterator in super()._enumerate_iterator():
                if begin == 0 or is_whole:
                    self._read(iterator)
                if not (is_whole or is_counted):
                    # Unread, the data would never raise StopIteration.
                    self.data_adapter.on_epoch_end()
                    return

    def _enumerate_from(self, steps: int) -> Iterator[Any]:
        """Return the rest of an epoch after reading `steps` batches."""
        epoch: Iterator[Any] = super()._enumerate_iterator()
        seen = 0
        while seen < steps:
            begin, *_, iterator = next(epoch)
            self._read(iterator)
            seen = begin + self.steps_per_execution
        return epoch

    def _read(self, iterator: Any) -> None:
        """Read and discard the batches of one execution."""
        if hasattr(iterator, "read_past"):
            iterator.read_past()
            return
        for number in range(self.steps_per_execution):
            try:
                next(iterator)
            except StopIteration:
                # The last execution may have fewer steps.
                if number == 0:
                    raise
                return

    def _enumerate_iterator(self) -> Iterator[Any]:
        """Yield the batches of an epoch, or the rest of a resumed one."""
        begun, self._begun = self._begun, None
        for execution in super()._enumerate_iterator() if begun is None else begun:
            self.steps = execution[0] + self.steps_per_execution
            yield execution


class Given(Enum):
    """Kinds of data that `fit` is given."""

    ARRAYS = auto()
    DATASET = auto()
    # From a PyDataset, a generator or a loader.
    BATCHES = auto()


def given_to(adapter: Any) -> Given:
    """Return what an adapter was made of."""
    if isinstance(adapter, ArrayDataAdapter):
        return Given.ARRAYS
    return Given.DATASET if holds_dataset(adapter) else Given.BATCHES


def holds_dataset(adapter: Any) -> bool:
    """Return whether an adapter holds a user's dataset."""
    return isinstance(adapter, TFDatasetAdapter)


def is_input_function(data: Any) -> bool:
    """Return whether data is a function that returns a process's dataset."""
    # Keras itself accepts no functions.
    return inspect.isroutine(data) or isinstance(data, functools.partial)


def adapter_of(dataset: Any, beside: Mapping[str, Any]) -> TFDatasetAdapter:
    """Return an adapter of a `tf.distribute.DistributedDataset`."""
    # `beside` are the other arguments of `fit`, by name.
    for name, what in (("y", "targets"), ("sample_weight", "sample weights")):
        if beside.get(name) is not None:
            raise ValueError(
                f"{name} must not be given beside a dataset of a strategy, whose "
                f"batches hold the {what}. Received: {name} of type "
                f"{type(beside[name]).__name__}. Let the dataset give (x, y) or "
                "(x, y, sample_weight)."
            )
    return TFDatasetAdapter(dataset, beside.get("class_weight"))


def is_composite(spec: Any) -> bool:
    """Return whether `KerasTensor` cannot represent a spec."""
    return isinstance(spec, tf.RaggedTensorSpec | tf.SparseTensorSpec)


def spec_of(batch: Any) -> Any:
    """Return the spec of a batch, or of a spec, for any number of rows.

    Batches differ only in their rows if `str` of their specs is equal.
    """
    return tf.nest.map_structure(_of_any_rows, batch)


def _of_any_rows(leaf: Any) -> Any:
    """Return the spec of a tensor or an array; None for an absent one."""
    if getattr(leaf, "shape", None) is None:
        return None
    if isinstance(leaf, tf.Variable):
        leaf = tf.convert_to_tensor(leaf)
    spec = leaf if isinstance(leaf, tf.TypeSpec) else tf.type_spec_from_value(leaf)
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    if isinstance(spec, tf.SparseTensorSpec) or spec.shape.rank:
        return type(spec)([None, *spec.shape[1:]], spec.dtype)
    return spec


def size_of(adapter: Any) -> str:
    """Describe how much data an adapter has."""
    count = adapter.num_batches
    if not isinstance(adapter, ArrayDataAdapter):
        return f"{'unknown' if count is None else int(count)} batches"
    missing = adapter.batch_size - (adapter.partial_batch_size or adapter.batch_size)
    rows = count * adapter.batch_size - missing
    return f"{rows} rows in batches of {adapter.batch_size}"


def shuffles_arrays(adapter: Any) -> bool:
    """Return whether an adapter draws a permutation of arrays in TensorFlow."""
    return isinstance(adapter, ArrayDataAdapter) and bool(adapter._shuffle)


def shuffles_batches(adapter: Any) -> bool:
    """Return whether an adapter draws a permutation of batches in Python."""
    return isinstance(adapter, PyDatasetAdapter) and bool(adapter.shuffle)


def shares_batches(adapter: Any) -> bool:
    """Return whether each epoch continues where the last one ended."""
    # Generators do so, and batches that workers of Keras prepare ahead.
    if isinstance(adapter, PyDatasetAdapter):
        return adapter.enqueuer is not None
    return not isinstance(adapter, ArrayDataAdapter | TFDatasetAdapter)


def may_leave_ranks_empty(adapter: Any, size: int) -> bool:
    """Return whether a batch of an adapter may have fewer rows than there are ranks."""
    if not isinstance(adapter, ArrayDataAdapter):
        return True
    rows = [adapter.batch_size, adapter.partial_batch_size or adapter.batch_size]
    return min(rows) < size


@contextmanager
def agreed_permutations(seed: int) -> Iterator[None]:
    """Make array adapters shuffle from `seed` if they become a dataset in the block."""
    # Each epoch has a new permutation, equal on every rank.
    generator = tf.random.Generator.from_seed(seed)

    def shuffle(value: Any, *_: Any, **__: Any) -> Any:
        seeds = generator.make_seeds(1)[:, 0]
        return tf.random.experimental.stateless_shuffle(value, seeds)

    with holding(tf.random, "shuffle", shuffle):
        yield


def seeded(seed: int | None) -> AbstractContextManager[None]:
    """Shuffle arrays from a seed, if given, unless the user has set a global seed."""
    if seed is None or global_seed() is not None:
        return nullcontext()
    return agreed_permutations(seed)


def agree_on_batches(seed: int) -> None:
    """Seed Python's permutations of batches, equally on all ranks."""
    # Newer versions of Keras seed each epoch by its number.
    if not hasattr(ArrayDataAdapter, "_tf_shuffle"):
        py_dataset_adapter.random = random.Random(seed)
