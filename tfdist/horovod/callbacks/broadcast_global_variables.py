"""BroadcastGlobalVariablesCallback: all ranks begin with one rank's values."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras.learning_rates import optimizers_of
from tfdist.horovod.native import native
from tfdist.horovod.variables import (
    broadcast_equal,
    tensorflow_variable,
    variables_of,
)


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives every rank the weights and the optimizer of one rank, in each `fit`.

    Ranks that start from different random weights, or of which one alone has read a
    checkpoint, would train different models.

    In Horovod this happens after the first batch, because optimizers used to have no
    variables before it. Here it happens before it, so that the gradients of the first
    step belong to the same weights on all ranks: when the training begins if the model
    is built on all ranks, and else when its first batch comes, from whose type it is
    built. Only an unbuilt model with `run_eagerly=True` waits for the end of the first
    batch, as in Horovod.

    The weights, the moving statistics and the variables of the optimizer are sent. The
    states of random layers are not: each rank keeps its own, so that dropout differs.

    Args:
        root_rank: The rank whose values the others get.
        device: Device of TensorFlow that sends and receives, such as "/cpu:0". Default
            "": TensorFlow decides.
        local_variables: Variables that every rank keeps as they are: one, or several.
            Default None: there are none.

    Raises:
        ValueError: If `local_variables` holds something else than variables.

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
        if local_variables is None:
            local_variables = []
        elif _is_variable(local_variables):
            local_variables = [local_variables]
        for variable in local_variables:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Let every rank keep a variable as it is.

        Args:
            var: A variable of Keras or of TensorFlow.

        Raises:
            ValueError: If it is something else.
        """
        if not _is_variable(var):
            raise ValueError(
                "local_variables must hold variables of Keras or of TensorFlow. "
                f"Received: {var!r} of type {type(var).__name__}. "
                "Pass layer.variables, for example."
            )
        self._local_variables.append(tensorflow_variable(var))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Send the values if all ranks have them already."""
        # One rank alone may hold a built model, because it has loaded it.
        everyone = native.allgather_object(
            _is_ready(self.model), name="tfdist.is_ready"
        )
        self._is_pending = not all(everyone)
        if not self._is_pending:
            self._broadcast()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Let the first step build the model and send the values before it."""
        if self._is_pending and not self.model.run_eagerly:
            self._is_pending = False
            self.model.train_function = self._broadcasting(self.model.train_function)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Send the values of a model that could not be built before."""
        if self._is_pending:
            self._is_pending = False
            self._broadcast()

    def _broadcasting(self, train_function: Callable[[Any], Any]) -> Any:
        """Return a step that builds and broadcasts first; it is called once."""

        def first_step(iterator: Any) -> Any:
            self.model.train_function = train_function
            # To trace a step makes all that it needs, and runs nothing of it. Ranks
            # that have it all trace, too: the first trace ties the ranks together.
            step = tf.function(self.model.train_step)
            step.get_concrete_function(iterator.element_spec)
            self._broadcast()
            return train_function(iterator)

        return first_step

    def _broadcast(self) -> None:
        """Send the values of all variables but the local ones."""
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


def _is_ready(model: keras.Model) -> bool:
    """Tell whether all that is sent exists, or can be made without a batch."""
    others = [one for one in optimizers_of(model) if one is not model.optimizer]
    return bool(model.built) and all(one.built for one in others)


def _is_variable(value: Any) -> bool:
    """Tell whether something is a variable of Keras or of TensorFlow."""
    return isinstance(value, keras.Variable | tf.Variable)
