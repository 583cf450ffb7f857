"""What is known of one step of training while it is traced, or run eagerly."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.sharding import Shard
from tfdist.verify.variables import Names, to_tensor


class WatchedStep:
    """Collects the tensors of a step that the end of the step is to be given.

    Args:
        fn: What the strategy runs.
        data: Its first argument.
        names: The names of variables.
    """

    def __init__(self, fn: Any, data: Any, names: Names) -> None:
        trainer = getattr(fn, "__self__", None)
        self.model = trainer if isinstance(trainer, keras.Model) else None
        self.optimizers: list[Any] = []
        self.variables: list[Any] = []
        self.loss: Any = None
        self.raw: dict[str, Any] = {}
        self.applied: dict[str, Any] = {}
        self._data = data
        self._names = names

    @property
    def custom_steps(self) -> list[str]:
        """The methods of Keras that the model overrides."""
        return [
            name
            for name in ("train_step", "compute_loss")
            if self.model is not None
            and getattr(type(self.model), name) is not getattr(keras.Model, name)
        ]

    def see_gradients(self, target: Any, sources: Any, gradients: Any) -> None:
        """Note the loss and the gradients that a tape has given, the first time."""
        if self.raw:
            return
        self.raw = self._by_name(sources, gradients)
        if tf.is_tensor(target) and target.shape.rank == 0 and _is_here(target):
            self.loss = target

    def see_update(self, optimizer: Any, gradients: Any, variables: Any) -> None:
        """Note what the optimizer gets."""
        self.optimizers.append(optimizer)
        self.variables += variables
        self.applied = self._by_name(variables, gradients)

    def batch(self) -> tuple[list[Any], Any]:
        """Return the tensors of the batch that have rows, and how many rows count."""
        is_shard = isinstance(self._data, Shard)
        data = self._data.data if is_shard else self._data
        tensors = [
            leaf.row_lengths() if isinstance(leaf, tf.RaggedTensor) else leaf
            for leaf in tf.nest.flatten(data)
            if isinstance(leaf, tf.Tensor | tf.RaggedTensor | np.ndarray)
        ]
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        leaves = [t for t in tensors if t.dtype != tf.variant and t.shape.rank != 0]
        return leaves, self._data.own if is_shard else None

    def _by_name(self, variables: Any, gradients: Any) -> dict[str, Any]:
        """Return the gradients that the end of the step can see."""
        return {
            self._names.of(variable): to_tensor(gradient)
            for variable, gradient in zip(variables, gradients, strict=False)
            if gradient is not None and _is_here(gradient)
        }


def _is_here(tensor: Any) -> bool:
    """Say whether a tensor belongs to the graph that is being built itself."""
    if tf.executing_eagerly():
        return True
    part = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return getattr(part, "graph", None) is tf.compat.v1.get_default_graph()
