"""Callbacks that keep variables, metrics and checkpoints consistent over ranks."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks.metric_average import check_equal_names
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.own_reduction import reduces_by_itself
from tfdist.compat.user_warnings import warn_user
from tfdist.horovod.elastic import Logs
from tfdist.horovod.joint import joint_call
from tfdist.horovod.native import native
from tfdist.horovod.variables import (
    broadcast_equal,
    tensorflow_variable,
    variables_of,
)
from tfdist.training.metrics import is_custom


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that broadcasts one rank's weights and optimizer in each `fit`.

    Without it, ranks with different initial weights, or with a checkpoint loaded on one
    rank only, train different models. It sends weights, moving statistics and optimizer
    variables, but not the states of random layers, so that dropout differs between
    ranks.

    Horovod broadcasts after the first batch. This callback broadcasts before it, so
    that the first gradients belong to equal weights: when training begins if the model
    is built on all ranks, otherwise at the first batch, whose spec builds the model.
    Only an unbuilt model with `run_eagerly=True` waits for the end of the first batch.

    Args:
        root_rank: The rank that sends its values.
        device: TensorFlow device for the broadcast, such as "/cpu:0". Default "":
            TensorFlow decides.
        local_variables: One or several variables that each rank keeps as they are.
            Default None.

    Raises:
        ValueError: If `local_variables` contains anything but variables.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> broadcast = BroadcastGlobalVariablesCallback(0)
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[broadcast])
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any | Iterable[Any] | None = None,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local_variables: list[Any] = []
        self._is_pending = False
        given = [] if local_variables is None else tf.nest.flatten(local_variables)
        for variable in given:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast.

        Args:
            var: A Keras or TensorFlow variable.

        Raises:
            ValueError: If `var` is not a variable.
        """
        if not isinstance(var, keras.Variable | tf.Variable):
            raise ValueError(
                "local_variables must hold variables of Keras or of TensorFlow. "
                f"Received: {var!r} of type {type(var).__name__}. "
                "Pass layer.variables, for example."
            )
        self._local_variables.append(tensorflow_variable(var))

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast if the model is built on all ranks."""
        # Only a rank that loaded its model may have built it.
        _check_reduces(self.model)
        with joint_call("BroadcastGlobalVariablesCallback"):
            everyone = native.allgather_object(
                _is_ready(self.model), name="tfdist.is_ready"
            )
        self._is_pending = not all(everyone)
        if not self._is_pending:
            self._broadcast()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Let the first step build the model and broadcast before it trains."""
        if self._is_pending and not self.model.run_eagerly:
            self._is_pending = False
            self.model.train_function = self._broadcasting(self.model.train_function)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcast a model that could not be built earlier."""
        if self._is_pending:
            self._is_pending = False
            self._broadcast()

    def _broadcasting(self, train_function: Callable[[Any], Any]) -> Any:
        """Return a training step that first builds and broadcasts, once."""

        def first_step(iterator: Any) -> Any:
            self.model.train_function = train_function
            # Tracing a step creates all variables without running it.
            step = tf.function(self.model.train_step)
            step.get_concrete_function(iterator.element_spec)
            self._broadcast()
            return train_function(iterator)

        return first_step

    def _broadcast(self) -> None:
        """Broadcast all variables except the local ones."""
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        local = {id(variable) for variable in self._local_variables}
        variables = [
            variable
            for variable in variables_of(self.model)
            if id(tensorflow_variable(variable)) not in local
        ]
        with tf.device(self.device):
            broadcast_equal(variables, self.root_rank, f"model {self.model.name!r}")


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that replaces each logged value of an epoch by its mean over all ranks.

    Without a strategy each rank measures its own shard of the data. Later callbacks in
    the list, and the history of `fit`, see the mean. Put this callback before
    `ReduceLROnPlateau`, `EarlyStopping`, `ModelCheckpoint` and `TensorBoard`, so that
    all ranks decide alike. All ranks have equal weight, whatever the size of their
    shards.

    Horovod hangs if ranks log different names. Here all ranks raise an error that lists
    the ranks and the missing names.

    Args:
        device: TensorFlow device for the exchange, such as "/cpu:0". Default "":
            TensorFlow decides.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> average = MetricAverageCallback()
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[average])
        >>> sorted(history.history)
        ['loss']
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the logs by their means, in place; raise if their names differ."""
        logs = {} if logs is None else logs
        own = {name: np.asarray(value, "float64") for name, value in logs.items()}
        with tf.device(self.device), joint_call("MetricAverageCallback"):
            everyone = native.allgather_object(own, name="tfdist.logs")
        check_equal_names("MetricAverageCallback", [set(one) for one in everyone])
        for name in own:
            mean = np.mean([one[name] for one in everyone], axis=0)
            logs[name] = float(mean) if mean.ndim == 0 else mean


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Callback that saves the model when a logged value is the best so far.

    It is Keras's `ModelCheckpoint(save_best_only=True)`. Horovod's users set
    `callback.filepath` before `fit`, which Keras 3 refuses. Here you can set it that
    way, or pass it to the constructor.

    Only rank 0 writes, even if all ranks have the callback. Put a
    `MetricAverageCallback` before it; otherwise rank 0 decides by its own shard of the
    data.

    Args:
        monitor: The name of the logged value. Default "val_loss".
        verbose: 1 to print a line per file. Default 0.
        save_weights_only: Whether to save only the weights, to a file that ends in
            ".weights.h5" instead of ".keras". Default False.
        mode: "min", "max", or "auto", which follows the name. Default "auto".
        save_freq: "epoch", or a number of batches. Default "epoch".
        filepath: Path of the file, with placeholders such as "{epoch}" as in Keras.
            Default None: it is set later.

    Raises:
        ValueError: If `filepath` has an ending that Keras does not support; in `fit`,
            if no path was set.

    Example:
        >>> checkpoint = BestModelCheckpoint(monitor="loss")
        >>> checkpoint.filepath = "best.keras"
        >>> checkpoint.filepath
        'best.keras'
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: str | os.PathLike[str] | None = None,
    ) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            # Keras checks the ending only here.
            f"best{ending}" if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Refuse to train without a valid path for the file."""
        ending = ".weights.h5" if self.save_weights_only else ".keras"
        if self.filepath is None or not str(self.filepath).endswith(ending):
            raise ValueError(
                f"BestModelCheckpoint needs a filepath that ends in {ending!r}. "
                f"Received: filepath={self.filepath!r}. Set it before fit: "
                f"callback.filepath = 'best{ending}'."
            )
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save on rank 0 if `save_freq` requires it."""
        if native.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save on rank 0 if the epoch was the best."""
        if native.rank() == 0:
            super().on_epoch_end(epoch, logs)


def _check_reduces(model: keras.Model) -> None:
    """Warn if Keras's own step of a model averages no gradients over the ranks."""
    optimizer = model.optimizer
    reduces = optimizer is None or reduces_by_itself(optimizer)
    is_alone = native.size() == 1 or tf.distribute.has_strategy()
    if reduces or is_alone or is_custom(model):
        return
    warn_user(
        "Each rank trains a model of its own. Received: the optimizer "
        f"{optimizer.name!r}, which is not distributed. Wrap it in "
        "hvd.DistributedOptimizer before compile, and load a saved model by "
        "hvd.load_model: Keras loads and copies a distributed optimizer as a plain one."
    )


def _is_ready(model: keras.Model) -> bool:
    """Return whether all variables exist, or can be created without a batch."""
    others = [one for one in optimizers_of(model) if one is not model.optimizer]
    return bool(model.built) and all(one.built for one in others)
