"""Input that workers read themselves: a pipeline per worker, made by a function."""

import functools
import itertools
import math
import random
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.parameter_server import captures_of, may_be_retried
from tfdist.compat.random_pipelines import seeding

WORKER = "/job:worker/replica:0/task:{}/device:CPU:0"
# Value of tf.data's ExternalStatePolicy.FAIL.
_FAIL = 2


class WorkerInput(tf.distribute.DistributedDataset):
    """The datasets that a function makes, each read by one worker.

    The chief traces the function; its datasets run on the workers. Any worker can make
    them again with the same shuffles, to continue for a lost one.
    """

    is_read_by_workers = True

    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        self._function = function
        self._workers = workers
        self._epochs = itertools.count()
        self._readers: dict[tuple[int, int], Reader] = {}

    def __iter__(self) -> "WorkerIterator":
        return WorkerIterator(self, self._epochs)

    def map(self, function: Callable[..., Any]) -> "WorkerInput":
        """Return this input with a function applied to each batch."""
        return self._changed(lambda dataset: dataset.map(function))

    def prefetch(self, size: int) -> "WorkerInput":
        """Return this input with batches prefetched by the workers."""
        return self._changed(lambda dataset: dataset.prefetch(size))

    def _changed(self, change: Callable[[Any], Any]) -> "WorkerInput":
        source = self._function
        return WorkerInput(lambda context: change(source(context)), self._workers)

    @property
    def element_spec(self) -> Any:
        """The spec of a batch."""
        return self.element_specs[0]

    @functools.cached_property
    def element_specs(self) -> list[Any]:
        """The spec of a batch of each pipeline; they may differ in their rows only."""
        return [dataset.structured_outputs.element_spec for dataset in self._datasets]

    @functools.cached_property
    def lengths(self) -> list[int]:
        """The number of batches of each pipeline; negative if unknown or infinite."""
        return [self._length_of(worker) for worker in range(self._workers)]

    @property
    def cardinality(self) -> int:
        """The number of batches of all workers; negative if unknown or infinite."""
        return min(self.lengths) if min(self.lengths) < 0 else sum(self.lengths)

    def reader(self, worker: int, pipeline: int) -> "Reader":
        """Return a worker's reader of a pipeline, for use on its thread only."""
        key = (worker, pipeline)
        if key not in self._readers:
            self._readers[key] = Reader(self._datasets[pipeline])
        return self._readers[key]

    def forget(self, worker: int, pipeline: int) -> None:
        """Drop a reader after an error."""
        self._readers.pop((worker, pipeline), None)

    def _length_of(self, worker: int) -> int:
        try:
            with tf.device(WORKER.format(worker)):
                return int(self._datasets[worker]().cardinality())
        except tf.errors.OpError as error:
            if not may_be_retried(error):
                raise
            # The worker is lost. Another reader will find the end of this pipeline.
            return int(tf.data.UNKNOWN_CARDINALITY)

    @functools.cached_property
    def _datasets(self) -> list[Any]:
        """Functions that make the datasets on the device where they are called."""
        seed = random.SystemRandom().getrandbits(31)
        contexts = [
            tf.distribute.InputContext(self._workers, worker, 1)
            for worker in range(self._workers)
        ]
        return [traced_dataset(self._function, one, seed) for one in contexts]


class WorkerIterator:
    """An epoch of a `WorkerInput`."""

    def __init__(self, source: WorkerInput, epochs: "itertools.count[int]") -> None:
        self.source = source
        self._epochs = epochs

    def __iter__(self) -> "WorkerIterator":
        return self

    def __next__(self) -> Any:
        raise TypeError(
            "Batches that workers read for themselves are not on the chief. "
            "Received: a loop over what distribute_datasets_from_function has "
            "returned. Give it to fit or evaluate."
        )

    def read_past(self) -> None:
        """Skip the epoch as if it had been read."""
        _ = self.epoch

    @functools.cached_property
    def epoch(self) -> int:
        """The epoch's number from 0, taken on first use: Keras drops some iterators."""
        return next(self._epochs)

    @functools.cached_property
    def pipelines(self) -> "Pipelines":
        """The assignment of batches to workers."""
        special = {
            int(tf.data.INFINITE_CARDINALITY): math.inf,
            int(tf.data.UNKNOWN_CARDINALITY): None,
        }
        return Pipelines([special.get(n, n) for n in self.source.lengths])


class BatchRange(NamedTuple):
    """Consecutive batches of a pipeline."""

    pipeline: int
    first: int
    steps: int


class Pipelines:
    """An assignment of each batch of several pipelines to exactly one reader, in order.

    Each worker reads its own pipeline. At its end, the worker takes over the pipeline
    of an absent worker, which takes it back when it returns. `lengths` are numbers of
    batches, `math.inf` for infinite pipelines, None for unknown.
    """

    def __init__(self, lengths: Sequence[float | None]) -> None:
        self._lengths = list(lengths)
        self._next = [0] * len(lengths)
        self._ended = {i for i, length in enumerate(lengths) if length == 0}
        self._readers = list(range(len(lengths)))
        self._lock = threading.Lock()

    @property
    def are_over(self) -> bool:
        """True once every batch was assigned."""
        return len(self._ended) == len(self._lengths)

    def has_known_length(self, pipeline: int) -> bool:
        """Return whether ranges never extend past the end of a pipeline."""
        return self._lengths[pipeline] is not None

    def take(
        self, worker: int, steps: int, absent: Collection[int] = ()
    ) -> BatchRange | None:
        """Assign the next batches to a worker; None if there are none for it now."""
        with self._lock:
            pipeline = self._pipeline_for(worker, absent)
            if pipeline is None:
                return None
            self._readers[pipeline] = worker
            first, length = self._next[pipeline], self._lengths[pipeline]
            if length is not None:
                steps = int(min(steps, length - first))
            self._next[pipeline] = first + steps
            if self._next[pipeline] == length:
                self._ended.add(pipeline)
            return BatchRange(pipeline, first, steps)

    def end(self, pipeline: int) -> None:
        """Record that a pipeline has no more batches."""
        with self._lock:
            self._ended.add(pipeline)

    def _pipeline_for(self, worker: int, absent: Collection[int]) -> int | None:
        """Return a worker's own pipeline, or else one that it may take over."""
        left = [i for i in range(len(self._lengths)) if i not in self._ended]
        if worker in left:
            return worker
        readers = {worker, *absent}
        return next((i for i in left if self._readers[i] in readers), None)


class Reader:
    """A worker's position in a pipeline, whose dataset `make` creates."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._dataset: Any = None
        self._epochs = 0
        self._at = (-1, -1)
        self._iterator: Any = None

    def at(self, epoch: int, batch: int) -> Any:
        """Return an iterator whose next element is the given batch of an epoch."""
        if self._at != (epoch, batch):
            if self._dataset is None or self._epochs > epoch:
                self._dataset, self._epochs = self._make(), 0
            while self._epochs < epoch:
                # Creating an iterator reshuffles, but reads nothing.
                iter(self._dataset)
                self._epochs += 1
            self._iterator = iter(self._dataset.skip(batch) if batch else self._dataset)
            self._epochs, self._at = epoch + 1, (epoch, batch)
        return self._iterator

    def advance(self, batches: int) -> None:
        """Record batches that were taken from the iterator."""
        epoch, batch = self._at
        self._at = (epoch, batch + batches)


def traced_dataset(function: Callable[[Any], Any], context: Any, seed: int) -> Any:
    """Return a concrete function that makes a dataset on the device of its caller.

    `seed` is that of shuffles without one, so that each copy is shuffled alike.
    """

    def make() -> Any:
        with seeding(seed):
            dataset = function(context)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "The function that makes the dataset of each worker must return a "
                f"tf.data.Dataset. Received: {type(dataset).__name__}. Return the "
                "batches of the worker that context.input_pipeline_id names."
            )
        return dataset

    traced = tf.function(make, autograph=False).get_concrete_function()
    captures = captures_of(traced)
    graphs = [
        None if callable(c) or c.dtype != tf.variant else _as_graph(c) for c in captures
    ]
    if all(graph is None for graph in graphs):
        return traced

    def make_of_sent() -> Any:
        sent = [
            capture if graph is None else tf.raw_ops.DatasetFromGraph(graph_def=graph)
            for capture, graph in zip(captures, graphs, strict=True)
        ]
        traced.set_external_captures(sent)
        return traced()

    return tf.function(make_of_sent, autograph=False).get_concrete_function()


def _as_graph(dataset: tf.Tensor) -> tf.Tensor:
    """Return a serialized graph of a dataset on the chief."""
    why = "a shuffled dataset: each worker would shuffle it in another way"
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset,
            external_state_policy=_FAIL,
            strip_device_assignment=True,
        )
    except tf.errors.FailedPreconditionError as error:
        why = error.message.splitlines()[0]
    else:
        if b"SeedGenerator" not in graph.numpy():
            return graph
    raise ValueError(
        "The function that makes the dataset of each worker uses a dataset made "
        f"outside of it, which cannot be sent to a worker. Received: {why}. Make the "
        "dataset, or this part of it, in the function."
    )
