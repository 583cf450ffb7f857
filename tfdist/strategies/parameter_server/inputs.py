"""Input that workers read for themselves: a pipeline on each, from a function."""

import functools
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.parameter_server import may_be_retried
from tfdist.strategies.parameter_server.batches import spec_of, without_missing
from tfdist.strategies.parameter_server.datasets import check_function, traced_dataset
from tfdist.strategies.parameter_server.pipelines import Pipelines

WORKER = "/job:worker/replica:0/task:{}/device:CPU:0"


class WorkerInput(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """The datasets that a function makes, each read by a worker.

    The chief traces the function; what it makes then runs on the worker, and no batch
    goes through the chief. It can be run again anywhere, with the same shuffles: so
    another worker can go on where one was lost.

    Args:
        function: Takes a `tf.distribute.InputContext`, returns a dataset of batches.
        workers: How many workers there are.
    """

    is_read_by_workers = True

    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        check_function(function)
        self._function = function
        self._workers = workers
        self._epochs = itertools.count()
        self._readers: dict[tuple[int, int], Reader] = {}

    def __iter__(self) -> "WorkerIterator":
        """Return an epoch, of which nothing is read yet."""
        return WorkerIterator(self, self._epochs)

    def map(self, function: Callable[..., Any]) -> "WorkerInput":
        """Return the same input with a function applied to each batch."""
        source = self._function
        return WorkerInput(lambda context: source(context).map(function), self._workers)

    def prefetch(self, size: int) -> "WorkerInput":
        """Return the same input, of which workers read some batches ahead."""
        source = self._function
        return WorkerInput(
            lambda context: source(context).prefetch(size), self._workers
        )

    @property
    def element_spec(self) -> Any:
        """The spec of a batch."""
        return self.element_specs[0]

    @functools.cached_property
    def element_specs(self) -> list[Any]:
        """The spec of a batch of each pipeline; they differ in rows at most."""
        specs = [dataset.structured_outputs.element_spec for dataset in self._datasets]
        kinds = [str(spec_of(without_missing(spec))) for spec in specs]
        for worker, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise ValueError(
                    "The function that makes the dataset of each worker must give all "
                    f"of them batches of one kind. Received: {specs[0]} for worker 0, "
                    f"{specs[worker]} for worker {worker}. Let context."
                    "input_pipeline_id decide which examples, not which kind."
                )
        return specs

    @functools.cached_property
    def lengths(self) -> list[int]:
        """The number of batches of each pipeline; negative if unknown or infinite."""
        return [self._length_of(worker) for worker in range(self._workers)]

    @property
    def cardinality(self) -> int:
        """The number of batches of all workers; negative if unknown or infinite."""
        return min(self.lengths) if min(self.lengths) < 0 else sum(self.lengths)

    def reader(self, worker: int, pipeline: int) -> "Reader":
        """Return a pipeline, as a worker reads it.

        Args:
            worker: Who reads; it is called in its thread only.
            pipeline: The number of the pipeline.
        """
        key = (worker, pipeline)
        if key not in self._readers:
            self._readers[key] = Reader(self._datasets[pipeline])
        return self._readers[key]

    def forget(self, worker: int, pipeline: int) -> None:
        """Drop what a worker holds of a pipeline, after an error."""
        self._readers.pop((worker, pipeline), None)

    def _length_of(self, worker: int) -> int:
        """Ask a worker for the number of its batches."""
        try:
            with tf.device(WORKER.format(worker)):
                return int(self._datasets[worker]().cardinality())
        except tf.errors.OpError as error:
            if not may_be_retried(error):
                raise
            # It is lost; whoever reads this pipeline will come to its end.
            return int(tf.data.UNKNOWN_CARDINALITY)

    @functools.cached_property
    def _datasets(self) -> list[Any]:
        """What makes the dataset of each pipeline on the device where it is called."""
        seed = random.SystemRandom().getrandbits(31)
        contexts = [
            tf.distribute.InputContext(
                num_input_pipelines=self._workers,
                input_pipeline_id=worker,
                num_replicas_in_sync=1,
            )
            for worker in range(self._workers)
        ]
        return [traced_dataset(self._function, one, seed) for one in contexts]


class WorkerIterator:
    """An epoch that workers read for themselves.

    Args:
        source: What they read.
        epochs: Counts the epochs.
    """

    def __init__(self, source: WorkerInput, epochs: "itertools.count[int]") -> None:
        self.source = source
        self._epochs = epochs

    def __iter__(self) -> "WorkerIterator":
        """Return the epoch itself."""
        return self

    def __next__(self) -> Any:
        """Refuse to give a batch away: it is not on this process."""
        raise TypeError(
            "Batches that workers read for themselves cannot be had on the chief. "
            "Received: a loop over what distribute_datasets_from_function has "
            "returned. Give it to fit or evaluate."
        )

    def read_past(self) -> None:
        """Take the epoch as one that was read."""
        _ = self.epoch

    @functools.cached_property
    def epoch(self) -> int:
        """Its number, from 0; Keras makes iterators that it never uses."""
        return next(self._epochs)

    @functools.cached_property
    def pipelines(self) -> Pipelines:
        """Who reads what."""
        special = {
            int(tf.data.INFINITE_CARDINALITY): math.inf,
            int(tf.data.UNKNOWN_CARDINALITY): None,
        }
        return Pipelines([special.get(n, n) for n in self.source.lengths])


class Reader:
    """A pipeline, as one worker reads it.

    Args:
        make: Makes its dataset, on the device where it is called.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._dataset: Any = None
        self._epochs = 0
        self._at = (-1, -1)
        self._iterator: Any = None

    def at(self, epoch: int, batch: int) -> Any:
        """Return an iterator whose next batch is a given one.

        Args:
            epoch: The number of the epoch.
            batch: The number of the batch in it.
        """
        if self._at != (epoch, batch):
            if self._dataset is None or self._epochs > epoch:
                self._dataset, self._epochs = self._make(), 0
            while self._epochs < epoch:
                # Each iterator is shuffled anew, one after the other; nothing is read.
                iter(self._dataset)
                self._epochs += 1
            self._iterator = iter(self._dataset.skip(batch) if batch else self._dataset)
            self._epochs, self._at = epoch + 1, (epoch, batch)
        return self._iterator

    def advance(self, batches: int) -> None:
        """Note that batches have been taken from the iterator."""
        epoch, batch = self._at
        self._at = (epoch, batch + batches)
