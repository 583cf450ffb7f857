"""Loading a model so that its training goes on in the job."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from tfdist.horovod.basics import Compression
from tfdist.horovod.optimizer import DistributedOptimizer


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Load a saved model, and wrap its optimizer with `DistributedOptimizer`.

    The optimizer goes on from where it was saved: with its slots, its learning rate and
    its count of steps. The file may have been saved with a distributed optimizer or
    with a plain one; it is the same file. XLA is switched off for the steps, because it
    cannot compile what talks to other ranks.

    Args:
        filepath: A ".keras" file, or a ".h5" file of a whole model, from which Keras
            reads no slots: they begin anew.
        custom_optimizers: Classes of optimizers that Keras does not know. Default None.
        custom_objects: Other classes and functions that Keras does not know, by name.
            Default None.
        compression: `Compression.none` or `Compression.fp16`, for the gradients.
            Default none.
        legacy_opts: Whether the optimizer is one of `keras.optimizers.legacy`, which
            Keras 3 does not have; must be False.

    Returns:
        The model, compiled; as it is if it was saved without an optimizer.

    Raises:
        ValueError: If `legacy_opts` is True, or Keras cannot read the file.

    Example:
        >>> import tempfile
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> history = model.fit(x, x[:, :1], verbose=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/model.keras")
        ...     loaded = load_model(f"{folder}/model.keras")
        >>> int(loaded.optimizer.iterations.numpy())
        1
    """
    if legacy_opts:
        raise ValueError(
            "legacy_opts must be False, because Keras 3 has no legacy optimizers. "
            f"Received: legacy_opts={legacy_opts!r}. Leave it out, and save the model "
            "under Keras 2 with an optimizer of keras.optimizers."
        )
    known = {one.__name__: one for one in custom_optimizers or ()}
    known |= custom_objects or {}
    model = keras.saving.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        with keras.saving.custom_object_scope(known):
            model.optimizer = _distributed(model.optimizer, model, compression)
        model.jit_compile = False
    return model


def _distributed(optimizer: Any, model: keras.Model, compression: Any) -> Any:
    """Return a wrapped optimizer with the state of a loaded one."""
    config = keras.optimizers.serialize(optimizer)
    fresh = keras.optimizers.deserialize(config)
    wrapped = DistributedOptimizer(fresh, compression=compression)
    if optimizer.built:
        wrapped.build(model.trainable_variables)
        # Of an HDF5 file Keras reads the first variables alone, and no slots.
        pairs = zip(wrapped.variables, optimizer.variables, strict=False)
        for variable, loaded in pairs:
            variable.assign(loaded)
    return wrapped
