"""Rows of weights: stand-ins for a `tf.Variable`, and parts of tensors by owner."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.sharding.assignment import DIVIDED, rows_by_rank


class RowsOf:
    """Stand-in for a `tf.Variable`: a small table of some of its rows, each once."""

    def __init__(self, variable: Any, rows: Any) -> None:
        self._variable, self._rows = variable, rows

    def __getattr__(self, name: str) -> Any:
        """Return what does not depend on the rows, such as the type."""
        return getattr(self._variable, name)

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the small table."""
        return tf.TensorShape([None, *self._variable.shape[1:]])

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Read the rows."""
        rows = self._variable.sparse_read(self._rows)
        return tf.convert_to_tensor(rows, dtype, name=name)

    def assign(self, value: Any) -> None:
        """Replace all rows."""
        self._variable.scatter_update(tf.IndexedSlices(value, self._rows))

    def assign_add(self, value: Any) -> None:
        """Add to all rows."""
        self._variable.scatter_add(tf.IndexedSlices(value, self._rows))

    def assign_sub(self, value: Any) -> None:
        """Subtract from all rows."""
        self._variable.scatter_sub(tf.IndexedSlices(value, self._rows))

    def scatter_add(self, slices: tf.IndexedSlices) -> None:
        """Add to some rows, also repeatedly to one."""
        self._variable.scatter_add(self._of_variable(slices))

    def scatter_sub(self, slices: tf.IndexedSlices) -> None:
        """Subtract from some rows, also repeatedly from one."""
        self._variable.scatter_sub(self._of_variable(slices))

    def _of_variable(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Return the slices with row numbers of the variable."""
        rows = tf.gather(self._rows, slices.indices)
        return tf.IndexedSlices(slices.values, rows)


class RowBlock(RowsOf):
    """Stand-in for consecutive rows of a `tf.Variable`, which stay fast to read."""

    _rows: slice

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the small table."""
        rows = self._rows.stop - self._rows.start
        return tf.TensorShape([rows, *self._variable.shape[1:]])

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Read the rows."""
        return tf.convert_to_tensor(self._variable[self._rows], dtype, name=name)

    def assign(self, value: Any) -> None:
        """Replace all rows."""
        # After an update of single rows, TensorFlow copies a variable to read it.
        whole = self._variable.read_value()
        parts = whole[: self._rows.start], value, whole[self._rows.stop :]
        self._variable.assign(tf.concat(parts, 0))

    def assign_add(self, value: Any) -> None:
        """Add to all rows."""
        self.assign(tf.convert_to_tensor(self) + value)

    def assign_sub(self, value: Any) -> None:
        """Subtract from all rows."""
        self.assign(tf.convert_to_tensor(self) - value)

    def part_of(self, gradient: Any) -> Any:
        """Return these rows of a gradient, which may lack the others."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient if gradient.shape == self.shape else gradient[self._rows]
        indices = gradient.indices - self._rows.start
        is_here = (indices >= 0) & (indices < self.shape[0])
        return tf.IndexedSlices(
            tf.boolean_mask(gradient.values, is_here),
            tf.boolean_mask(indices, is_here),
            tf.constant(self.shape.as_list(), tf.int64),
        )

    def _of_variable(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Return the slices with row numbers of the variable."""
        return tf.IndexedSlices(slices.values, slices.indices + self._rows.start)


class Part(NamedTuple):
    """A tensor, or some rows of it, by its position among others.

    `owner` is the only rank that needs it, or that has it; None stands for all ranks.
    """

    position: int
    tensor: Any
    owner: int | None = None


def split_divided(
    tensors: Sequence[Any],
    owners: Sequence[int | None],
    ranks: int,
    part_bytes: int,
) -> list[Part]:
    """Return the parts in which tensors are sent.

    Of dense tensors with `DIVIDED` as owner, each rank owns some rows, which are sent
    in parts of about `part_bytes`.
    """
    parts: list[Part] = []
    for i, (tensor, owner) in enumerate(zip(tensors, owners, strict=True)):
        if owner != DIVIDED or isinstance(tensor, tf.IndexedSlices):
            parts.append(Part(i, tensor, None if owner == DIVIDED else owner))
            continue
        row_bytes = tensor.shape[1:].num_elements() * tensor.dtype.size
        step = max(1, part_bytes // max(1, row_bytes))
        cut = [
            (start - rows.start, rank, min(step, rows.stop - start))
            for rank, rows in enumerate(rows_by_rank(tensor.shape[0], ranks))
            for start in range(rows.start, rows.stop, step)
        ]
        pieces = tf.split(tensor, [length for *_, length in cut])
        # Neighbours have different owners, which send at the same time.
        order = sorted(range(len(cut)), key=cut.__getitem__)
        parts += [Part(i, pieces[n], cut[n][1]) for n in order]
    return parts


def join_divided(parts: Sequence[Part]) -> list[Any]:
    """Return the tensors of the parts that `split_divided` returned."""
    by_position: dict[int, list[Part]] = {}
    for part in parts:
        by_position.setdefault(part.position, []).append(part)
    tensors = []
    for of_one in by_position.values():
        # By owner, and of one owner in the order of the rows.
        joined = [p.tensor for p in sorted(of_one, key=lambda p: p.owner or 0)]
        tensors.append(tf.concat(joined, 0) if len(joined) > 1 else joined[0])
    return tensors
