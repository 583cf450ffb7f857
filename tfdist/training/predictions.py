"""Predictions of all ranks, in order."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import Collective
from tfdist.collectives.base import name_in_graph


def gather_rows(outputs: Any, collective: Collective) -> Any:
    """Join the rows of all ranks, in the order of the ranks.

    Args:
        outputs: A structure of tensors, also ragged ones, of this rank's rows.
        collective: How the ranks talk.

    Returns:
        The same structure, of the rows of all ranks.
    """

    def gather(leaf: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensor):
            return tf.RaggedTensor.from_row_lengths(
                gather(leaf.values), gather(leaf.row_lengths())
            )
        return collective.all_gather(leaf, name=name_in_graph("predictions"))

    return tf.nest.map_structure(gather, outputs)


def join_rows(outputs: Sequence[Any]) -> Any:
    """Join the rows that the devices of this process have.

    Args:
        outputs: Structures of tensors, also ragged ones, by device.

    Returns:
        The same structure, of all rows.
    """
    return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *outputs)
