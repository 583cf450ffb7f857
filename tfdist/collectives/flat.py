"""Tensors of any shape, moved by TensorFlow's own ops as flat ones."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.ops import FlatOps
from tfdist.collectives.packing import pack, padded_rows, unpack
from tfdist.collectives.typed import TypedCollective


class FlatMoves(TypedCollective):
    """Packs tensors of one type into one, which `FlatOps` move.

    A subclass sets `_ops`.
    """

    _ops: FlatOps

    def _reduce(self, tensors: list[Any], reduction: str, name: str) -> list[Any]:
        return unpack(self._ops.reduce(pack(tensors), reduction, name), tensors)

    def _gather(self, tensor: Any, name: str) -> Any:
        """Join rows padded to one number, and leave the padding out again."""
        shape = tf.shape(tensor)
        counts = tf.reshape(self._ops.gather(shape[:1], f"{name}/rows"), [-1])
        rows = padded_rows(tf.reduce_max(counts))
        padding = [[0, rows - shape[0]]] + [[0, 0]] * (tensor.shape.rank - 1)
        flat = tf.reshape(tf.pad(tensor, padding), [-1])
        blocks = self._ops.gather(flat, name)
        blocks = tf.reshape(blocks, tf.concat([[self.size, rows], shape[1:]], 0))
        return tf.boolean_mask(blocks, tf.sequence_mask(counts, rows))

    def _broadcast(self, tensors: list[Any], root_rank: int, name: str) -> list[Any]:
        return unpack(self._ops.broadcast(pack(tensors), root_rank, name), tensors)
