"""Horovod's callbacks for `fit`, under Horovod's names."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist.callbacks.learning_rate import EpochRange
from tfdist.callbacks.metric_average import MetricAverage
from tfdist.callbacks.rates import correct_momentum
from tfdist.compat.keras.compile_checks import has_all_weights
from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.compat.keras.own_reduction import reduces_by_itself
from tfdist.compat.user_warnings import warn_user
from tfdist.horovod.elastic import (
    CommitStateCallback,
    Logs,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from tfdist.horovod.native import joint_call, native
from tfdist.horovod.variables import (
    broadcast_equal,
    tensorflow_variable,
    variables_of,
)
from tfdist.learning_rate import warmup_multiplier
from tfdist.training.metrics import is_custom

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Callback that broadcasts one rank's weights and optimizer in each `fit`.

    Without it, ranks with different initial weights, or with a checkpoint loaded on one
    rank only, train different models. It sends weights, moving statistics and optimizer
    variables, but not the states of random layers, so that dropout differs between
    ranks.

    Horovod broadcasts after the first batch. This callback broadcasts before its step,
    so that the first gradients belong to equal weights, also to those that other
    callbacks have loaded on one rank. The spec of the batch builds a model that is not
    built on all ranks; others are also broadcast when training begins. Only an unbuilt
    model with `run_eagerly=True` waits for the end of the first batch.

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
        """Broadcast if the model is built on all ranks, for callbacks that read it."""
        _check_reduces(self.model)
        self._broadcast_if_ready()
        # Later callbacks may load weights when training begins.
        self._is_pending = True

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Broadcast, or let the first step build the model and broadcast, once."""
        if not self._is_pending:
            return
        if self._broadcast_if_ready():
            self._is_pending = False
        elif not self.model.run_eagerly:
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

    def _broadcast_if_ready(self) -> bool:
        """Broadcast if the model is built on all ranks, and return whether it is."""
        # Only a rank that loaded its model may have built it.
        with joint_call("BroadcastGlobalVariablesCallback"):
            everyone = native.allgather_object(
                _is_ready(self.model), name="tfdist.is_ready"
            )
        if all(everyone):
            self._broadcast()
        return all(everyone)

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


class MetricAverageCallback(MetricAverage):
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

    def _exchange(self, mine: list[Any]) -> list[list[Any]]:
        """Return the logs and weights of all ranks, in elastic jobs as well."""
        with tf.device(self.device), joint_call("MetricAverageCallback"):
            return native.allgather_object(mine, name="tfdist.logs")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
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


class LearningRateScheduleCallback(EpochRange):
    """Callback that sets the learning rate to `initial_lr` times a multiplier.

    Use several, one per range of epochs, for a piecewise schedule. The rate at the end
    of an epoch is logged as "learning_rate", Keras's name, and as "lr", Horovod's name.

    Args:
        initial_lr: The learning rate to multiply.
        multiplier: A number c for the decay c ** (epoch - start_epoch), or a function
            of the epoch, counted from 0, that returns the multiplier.
        start_epoch: The first epoch of the range. Default 0.
        end_epoch: The epoch after the last of the range. Default None: no end.
        staircase: Whether to set the rate once per epoch, before its first step. If
            False, it is set before every step, and the multiplier receives fractions,
            such as 2.5 halfway through the third epoch. Default True.
        momentum_correction: Whether to correct the momentum of SGD and RMSprop for the
            new rate. Default True.
        steps_per_epoch: Steps per epoch; required with `staircase=False` if Keras does
            not know them. Default None.

    Raises:
        ValueError: In `fit`, if the steps per epoch are unknown, or if the optimizer
            has a Keras schedule.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> halve = LearningRateScheduleCallback(0.5, multiplier=0.5, start_epoch=1)
        >>> history = model.fit(
        ...     x, x[:, :1], epochs=4, verbose=0, callbacks=[halve]
        ... )
        >>> [round(rate, 3) for rate in history.history["lr"]]
        [0.01, 0.5, 0.25, 0.125]

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour".
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(
            multiplier,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.initial_lr = initial_lr

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check that the rate can be set, and determine the steps per epoch."""
        _variable_of(self.model.optimizer)
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the rate."""
        if logs is not None:
            rate = float(self.model.optimizer.learning_rate.numpy())
            logs["lr"] = logs["learning_rate"] = rate

    def _set(self, epoch: float) -> None:
        """Set the rate of an epoch."""
        variable = _variable_of(self.model.optimizer)
        old, rate = float(variable.numpy()), self.initial_lr * self.multiplier_at(epoch)
        variable.assign(rate)
        # The momentum of SGD and RMSprop contains earlier learning rates (Goyal et al.
        # 2017, section 3). Horovod corrects its coefficient instead, a constant in
        # Keras 3. After a rate of 0 there is nothing to correct.
        if self.momentum_correction and old not in (0.0, rate):
            correct_momentum(self.model.optimizer, rate / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Callback that raises the learning rate gradually from `initial_lr / size`.

    Args:
        initial_lr: The rate to reach, already scaled, usually `0.001 * hvd.size()`.
        warmup_epochs: The number of epochs. Default 5; 0 for no warm-up.
        momentum_correction: Whether to correct the momentum of SGD and RMSprop for each
            new rate. Default True.
        steps_per_epoch: Steps per epoch, if Keras does not know them. Default None.
        verbose: 1 to print a line on rank 0 at the end of warm-up. Default 0.

    Raises:
        ValueError: In `fit`, if the steps per epoch are unknown, or if the optimizer
            has a Keras schedule.

    Example:
        >>> import keras
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = keras.ops.ones((8, 4))
        >>> warmup = LearningRateWarmupCallback(0.5, warmup_epochs=2)
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[warmup])
        >>> history.history["lr"]
        [0.5]

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the rate, and print a line at the end of warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1 and native.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: the warm-up has ended, "
                f"learning rate {self.initial_lr:g}.",
                flush=True,
            )

    def _multiplier(self, epoch: float) -> float:
        """Return the multiplier of a step; the number of ranks may have changed."""
        assert self._steps is not None  # Else on_train_begin has raised.
        return warmup_multiplier(epoch, native.size(), self.warmup_epochs, self._steps)


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
    return has_all_weights(model) and all(one.built for one in others)


def _variable_of(optimizer: Any) -> Any:
    """Return the learning rate variable, or refuse a Keras schedule."""
    rate = optimizer.learning_rate
    if not isinstance(rate, keras.Variable):
        raise ValueError(
            "The learning rate of an optimizer must be a number where a callback sets "
            f"it. Received: {type(optimizer).__name__} with a LearningRateSchedule or "
            "a function. Give the optimizer a number, or leave out the callback."
        )
    return rate
