"""Functions that make the dataset of a worker: traced here, run where it is read."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.parameter_server import captures_of

# tf.data's FAIL: what cannot be sent whole is not sent.
_FAIL = 2


def traced_dataset(function: Callable[[Any], Any], context: Any, seed: int) -> Any:
    """Trace a function that makes the dataset of a worker.

    Args:
        function: Takes a `tf.distribute.InputContext`, returns a dataset.
        context: What it is called with.
        seed: What is shuffled without a seed is shuffled with this one, so that it is
            shuffled alike when it is read again.

    Returns:
        A concrete function without arguments, which makes the dataset on the device
        where it is called.

    Raises:
        TypeError: If it returns something else.
        ValueError: If it uses a dataset of the chief that cannot be sent.
    """

    def make() -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph.seed is None:
            graph.seed = seed
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
    if not any(graph is not None for graph in graphs):
        return traced

    def make_of_sent() -> Any:
        sent = [
            capture if graph is None else tf.raw_ops.DatasetFromGraph(graph_def=graph)
            for capture, graph in zip(captures, graphs, strict=True)
        ]
        traced.set_external_captures(sent)
        return traced()

    return tf.function(make_of_sent, autograph=False).get_concrete_function()


def check_function(function: Any) -> None:
    """Refuse what cannot make the dataset of a worker.

    Args:
        function: What was given as such.

    Raises:
        TypeError: If it cannot be called with one argument.
    """
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise TypeError(
            "The function that makes the dataset of each worker takes one argument, a "
            f"tf.distribute.InputContext. Received: {function!r} ({error}). Write "
            "`lambda context: dataset`."
        ) from None


def _as_graph(dataset: tf.Tensor) -> tf.Tensor:
    """Return a dataset that the chief has made, as what workers can make it from."""
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
