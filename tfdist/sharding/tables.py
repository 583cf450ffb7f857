"""Lookups in a table of which each rank has some rows."""

from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, name_in_graph
from tfdist.collectives.wire_format import padded_rows
from tfdist.compat.sparse_updates import add_slices, outside_of_xla
from tfdist.gradients.reducer import weigh
from tfdist.sharding.assignment import rows_by_rank


def look_up(
    table: tf.Variable,
    shape: Any,
    ids: Any,
    collective: Collective,
    weight: Any,
    *,
    is_summed: bool,
) -> Any:
    """Return the rows `ids`, a vector, of a table of which `table` has this rank's.

    All ranks must call it. A rank gets a row once, however often `ids` has it. In the
    backward pass, the gradient of each lookup is multiplied by this rank's `weight` and
    sent to the rank that has the row. There slices of a row stay separate, as in Keras,
    whose optimizers square each by itself, unless they are to be summed.
    """
    count, width = shape

    @tf.custom_gradient
    def read() -> Any:
        distinct, places = tf.unique(_checked(ids, count))
        starts = tf.constant(
            [rows.start for rows in rows_by_rank(count, collective.size)], ids.dtype
        )
        owners = tf.searchsorted(starts, distinct, "right") - 1
        numbers = distinct - tf.gather(starts, owners)
        once = _Message(owners, collective)
        each = _Message(tf.gather(owners, places), collective)
        _agree_on_lengths((once, each), collective)
        wanted = once.send(numbers, "numbers of rows")
        # What is left of the room has zeros, and each rank has a row 0.
        found = once.answer(table.sparse_read(wanted), "rows")

        def backward(upstream: Any, variables: Any = ()) -> Any:
            with outside_of_xla():
                upstream = tf.reshape(tf.convert_to_tensor(upstream), [-1, width])
                (weighed,) = weigh([upstream], weight)
                of_each = tf.gather(numbers, places)
                slices = tf.IndexedSlices(
                    each.received(each.send(weighed, "gradients of rows")),
                    each.received(each.send(of_each, "rows of gradients")),
                    tf.constant(table.shape.as_list(), tf.int64),
                )
                if is_summed:
                    slices = add_slices(slices)
            return [], [slices] * len(variables)

        return tf.gather(found, places), backward

    with outside_of_xla():
        return read()


def _checked(ids: Any, count: int) -> Any:
    """Return the numbers of rows, if there are these rows."""
    are_rows = tf.reduce_all((ids >= 0) & (ids < count))
    text = f"Ids of an Embedding must be from 0 to {count - 1}. Received, among others:"
    told = [text, tf.reduce_min(ids), tf.reduce_max(ids), "Give it a larger input_dim."]
    with tf.control_dependencies([tf.debugging.Assert(are_rows, told)]):
        return tf.identity(ids)


class _Message:
    """Values for their owners, with as much room for each rank from each."""

    # How many values a rank has for another at most, and each has for this one.
    _room: Any
    _lengths: Any

    def __init__(self, owners: Any, collective: Collective) -> None:
        self._owners, self._collective = owners, collective
        ones = tf.ones_like(owners)
        self.counts = tf.math.unsorted_segment_sum(ones, owners, collective.size)
        order = tf.argsort(owners, stable=True)
        first = tf.gather(tf.cumsum(self.counts, exclusive=True), owners)
        place = tf.scatter_nd(
            order[:, tf.newaxis], tf.range(tf.size(owners)), tf.shape(owners)
        )
        # Among the values for the same owner.
        self._number = place - first

    def take_lengths(self, counts: Any) -> None:
        """Take the number of values that each rank has for each."""
        self._lengths = counts[:, self._collective.rank]
        # TensorFlow's engine is slow with each new size.
        self._room = padded_rows(tf.maximum(tf.reduce_max(counts), 1))

    def send(self, values: Any, what: str) -> Any:
        """Send values to the owners; return those for this rank, by rank."""
        size, rest = self._collective.size, values.shape[1:].as_list()
        packed = tf.scatter_nd(self._slots(), values, [size * self._room, *rest])
        return self._exchange(tf.reshape(packed, [size, self._room, *rest]), what)

    def answer(self, values: Any, what: str) -> Any:
        """Send back one value for each that was sent; return them in its order."""
        values = self._exchange(values, what)
        flat = tf.reshape(values, [-1, *values.shape[2:].as_list()])
        return tf.gather_nd(flat, self._slots())

    def received(self, values: Any) -> Any:
        """Return the values that ranks have sent, without the rest of the room."""
        return tf.boolean_mask(values, tf.sequence_mask(self._lengths, self._room))

    def _slots(self) -> Any:
        """Return the places of the values in the message."""
        return (self._owners * self._room + self._number)[:, tf.newaxis]

    def _exchange(self, values: Any, what: str) -> Any:
        """Send each rank its part, and return the parts from all."""
        name = name_in_graph(f"{what} of a table")
        return self._collective.all_to_all(values, name=name)


def _agree_on_lengths(messages: tuple[_Message, ...], collective: Collective) -> None:
    """Tell all ranks how many values each has for each."""
    mine = tf.stack([message.counts for message in messages])
    is_mine = tf.one_hot(collective.rank, collective.size, dtype=mine.dtype)
    counts = is_mine[:, tf.newaxis] * mine[:, tf.newaxis, :]
    name = name_in_graph("lengths of lookups")
    (counts,) = collective.all_reduce([counts], "sum", name=name)
    for message, of_all in zip(messages, tf.unstack(counts), strict=True):
        message.take_lengths(of_all)
