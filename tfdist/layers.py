"""Layers that Keras does not have, for tables on parameter servers."""

import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.dynamic_tables import TableIds, TableInitializer
from tfdist.compat.keras.install import install
from tfdist.compat.keras.pure_step import look_up_dynamic

__all__ = ["DynamicEmbedding"]


@keras.saving.register_keras_serializable(package="tfdist")
class DynamicEmbedding(keras.layers.Layer):
    """Embedding of any id, without a vocabulary.

    An `Embedding` needs the number of ids before training, and hashes that fit it make
    ids share rows. This layer gives an id a row of its own when training first meets
    it. Under `ParameterServerStrategy` each server holds the rows of some ids, chosen
    by a hash, and the optimizer's variables beside them; both grow as ids come.

    A new row begins with uniform random values between -0.05 and 0.05, which depend on
    `seed` and the id alone. So neither the order of ids nor their number matters, and
    with `consistency="sync"` training equals that of an `Embedding` of the same initial
    rows. An id without a row has the default row, which is zero: with `training=False`,
    and before `admit_after` lookups.

    Without that strategy the layer loads and looks up, but is not trained. Import
    `tfdist.layers` before loading a file with this layer.

    Args:
        dim: The length of a row.
        admit_after: The number of lookups in training after which an id gets a row.
            The gradients before are dropped. Default 1: at once.
        expire_steps: The number of updates after which the row of an id that none of
            them has had may be given to another id, before the table grows. Counts of
            ids without a row are then dropped that often, too. Default None: never.
        id_dtype: "int64" or "string". Default "int64".
        seed: The seed of initial values. Default None: random, from Python's generator.
        **options: The options of all layers: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: If an argument is invalid; in training, if it is not under
            `ParameterServerStrategy`, or the optimizer would also change rows without
            a gradient, as by weight decay.

    Example:
        >>> layer = DynamicEmbedding(4)
        >>> layer(np.array([[7, -123456789012]])).shape
        TensorShape([1, 2, 4])
        >>> layer.size()
        0
    """

    def __init__(
        self,
        dim: int,
        admit_after: int = 1,
        expire_steps: int | None = None,
        *,
        id_dtype: str = "int64",
        seed: int | None = None,
        **options: Any,
    ) -> None:
        _check(dim, admit_after, expire_steps, id_dtype)
        super().__init__(**options)
        # Rows are cast after the lookup, and ids never.
        self.autocast = False
        self.dim = dim
        self.admit_after = admit_after
        self.expire_steps = expire_steps
        self.id_dtype = id_dtype
        self.seed = random.randrange(2**31) if seed is None else seed
        install(is_alone=True)

    def build(self, input_shape: Any = None) -> None:
        """Create the table, which has no row yet."""
        if self.built:
            return
        initializer = TableInitializer(
            dim=self.dim,
            id_dtype=tf.as_dtype(self.id_dtype),
            seed=self.seed,
            admit_after=self.admit_after,
            expire_steps=self.expire_steps,
        )
        self._rows = self.add_weight(
            shape=(0, self.dim), initializer=initializer, name="rows"
        )

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Return the rows of ids."""
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self.call(ids.flat_values, training))
        ids = tf.convert_to_tensor(ids)
        is_string = ids.dtype == tf.string
        is_integer = ids.dtype.is_integer and ids.dtype != tf.uint64
        if is_string != (self.id_dtype == "string") or not (is_string or is_integer):
            raise ValueError(
                f"A DynamicEmbedding with id_dtype={self.id_dtype!r} looks up such "
                f"ids. Received: {ids.dtype.name}. Convert them, or give the layer "
                "another id_dtype: 'int64' or 'string'."
            )
        ids = ids if is_string else tf.cast(ids, tf.int64)
        is_training = bool(training) and self.trainable
        rows = look_up_dynamic(self._rows, ids, is_training=is_training)
        return tf.cast(rows, self.compute_dtype)

    def compute_output_spec(self, ids: Any, training: bool | None = None) -> Any:
        """Return the spec of the rows of symbolic ids."""
        return keras.KerasTensor((*ids.shape, self.dim), dtype=self.compute_dtype)

    def size(self) -> int:
        """Return the number of ids that have a row.

        Returns:
            The number, over all servers.
        """
        return self._rows._value.table.size()

    def export(self) -> tuple[Any, Any]:
        """Return ids and a plain layer with their rows, to be served without tfdist.

        Returns:
            vocabulary: The ids as an array of int64 or str, of shape (n,).
            embedding: A `keras.layers.Embedding` of n + 1 rows, built in this process.
                Its row 0 is the default row, and row i + 1 that of `vocabulary[i]`, as
                `keras.layers.IntegerLookup(vocabulary=vocabulary)` and `StringLookup`
                number ids.
        """
        ids = self._rows._value.table.state()[0]
        if self.id_dtype == "string":
            ids = np.array([one.decode() for one in ids], np.str_)
        rows = np.concatenate([np.zeros((1, self.dim)), self._rows.numpy()])
        embedding = keras.layers.Embedding(*rows.shape, dtype=self.variable_dtype)
        embedding.build()
        embedding.set_weights([rows])
        return ids, embedding

    def save_own_variables(self, store: Any) -> None:
        """Save ids and rows."""
        store["ids"] = TableIds(self._rows).numpy()
        store["rows"] = self._rows.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load ids, then their rows."""
        TableIds(self._rows).assign(store["ids"])
        self._rows.assign(store["rows"])

    def get_config(self) -> dict[str, Any]:
        """Return the serialized arguments by name."""
        names = "dim", "admit_after", "expire_steps", "id_dtype", "seed"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _check(dim: Any, admit_after: Any, expire_steps: Any, id_dtype: Any) -> None:
    """Refuse invalid arguments."""
    numbers = {"dim": dim, "admit_after": admit_after}
    if expire_steps is not None:
        numbers["expire_steps"] = expire_steps
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise ValueError(
                f"{name} must be a positive whole number. Received: {name}={number!r}. "
                "Use for example DynamicEmbedding(32, admit_after=2, "
                "expire_steps=100_000)."
            )
    if id_dtype not in ("int64", "string"):
        raise ValueError(
            "id_dtype must be 'int64' or 'string'. Received: "
            f"id_dtype={id_dtype!r}. Use 'int64' for all whole numbers."
        )
