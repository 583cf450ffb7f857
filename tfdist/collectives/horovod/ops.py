"""Horovod's operations on tensors, each with the name that pairs it between ranks."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from tfdist.collectives.constants import unlike_a_constant
from tfdist.compat.tensorflow import local_device, run_always

# Puts an operation on tensors into the graph, under a name.
_Operation = Callable[[list[Any], str], list[Any]]


@dataclass(frozen=True)
class How:
    """How tensors are combined.

    Args:
        op: `horovod.Sum`, `Min`, `Max` or `Adasum`.
        prescale_factor: What each tensor is multiplied by before. Default 1.
        postscale_factor: What each result is multiplied by. Default 1.
        is_group: Whether the tensors set out together. Default False: each does as
            soon as it is there.
    """

    op: Any
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    is_group: bool = False


class HorovodOps:
    """The operations of one rank, on tensors of types that Horovod knows.

    Args:
        process_set: The ranks that take part.
        call: Marks an operation that runs now; see `Collective.call`.
        traced: Notes one that a graph will run; see `Lifeline.traced`.
    """

    def __init__(
        self,
        process_set: Any,
        call: Callable[[str], AbstractContextManager[None]],
        traced: Callable[[str], None],
    ) -> None:
        self._common = {"process_set": process_set, "ignore_name_scope": True}
        self._ranks = process_set.ranks
        self._call, self._traced = call, traced
        self._functions: dict[str, Any] = {}

    def reduce(self, tensors: Sequence[Any], how: How, name: str) -> list[Any]:
        """Combine tensors over all ranks.

        Args:
            tensors: Of one type that Horovod reduces.
            how: How they are combined.
            name: What is reduced.

        Returns:
            The results.
        """
        options = {
            "op": how.op,
            "prescale_factor": how.prescale_factor,
            "postscale_factor": how.postscale_factor,
            **self._common,
        }

        def reduce(tensors: list[Any], name: str) -> list[Any]:
            if how.op == hvd.Adasum:
                # For tensors of no device, Horovod forks TensorFlow to look for GPUs.
                with tf.device(local_device()):
                    tensors = [tf.identity(tensor) for tensor in tensors]
            if len(tensors) > 1:
                results: list[Any] = hvd.grouped_allreduce(
                    tensors, name=name, **options
                )
                return results
            return [hvd.allreduce(tensors[0], name=name, **options)]

        factors = f"{how.prescale_factor} {how.postscale_factor}"
        together = " together" if how.is_group else ""
        what = f"all_reduce {name} {how.op} {factors}{together}"
        return self._run(what, reduce, tensors, is_group=how.is_group)

    def gather(self, tensor: Any, name: str) -> Any:
        """Join the rows of all ranks, of which each may have another number.

        Args:
            tensor: Of a type that Horovod gathers.
            name: What is gathered.

        Returns:
            The rows of all ranks.
        """

        def gather(tensors: list[Any], name: str) -> list[Any]:
            return [hvd.allgather(tensors[0], name=name, **self._common)]

        return self._run(f"all_gather {name}", gather, [tensor])[0]

    def broadcast(self, tensors: Sequence[Any], root_rank: int, name: str) -> list[Any]:
        """Give every rank the tensors of one.

        Args:
            tensors: Of types that Horovod broadcasts.
            root_rank: Whose are given; its place among the ranks that take part.
            name: What is broadcast.

        Returns:
            The root's tensors.
        """
        root = self._ranks[root_rank]

        def broadcast(tensors: list[Any], name: str) -> list[Any]:
            return [hvd.broadcast(tensors[0], root, name=name, **self._common)]

        return self._run(f"broadcast {name} from {root}", broadcast, tensors)

    def _run(
        self,
        what: str,
        operation: _Operation,
        tensors: Sequence[Any],
        *,
        is_group: bool = False,
    ) -> list[Any]:
        """Run an operation on each tensor, or on all; or put it into the graph."""

        def build(tensors: Sequence[Any]) -> list[Any]:
            if is_group:
                return _build(what, operation, list(tensors))
            return [
                _build(f"{what}/{i}", operation, [tensor])[0]
                for i, tensor in enumerate(tensors)
            ]

        if not tf.executing_eagerly():
            self._traced(what)
            return build(tensors)
        # In eager code Horovod pairs whatever comes, in a graph what has one name.
        if what not in self._functions:
            self._functions[what] = tf.function(build, reduce_retracing=True)
        tensors = list(tensors)
        with self._call(what):
            # In a graph also where the user wants all functions to run eagerly.
            function = self._functions[what].get_concrete_function(tensors)
            results: list[Any] = function(tensors)
        return results


def _build(what: str, operation: _Operation, tensors: list[Any]) -> list[Any]:
    """Put one operation into the graph."""
    graph = tf.compat.v1.get_default_graph()
    # Horovod hears no scope, and TensorFlow makes names different within one only. A
    # graph that XLA compiles cannot hold the operation, but stands beside it.
    with graph.name_scope(None), tf.xla.experimental.jit_scope(compile_ops=False):
        results = operation(
            [unlike_a_constant(tensor) for tensor in tensors],
            re.sub(r"[^A-Za-z0-9]+", "_", what),
        )
    for result in results:
        # A rank that has no use for the result must take part all the same.
        run_always(result.op)
    return results
