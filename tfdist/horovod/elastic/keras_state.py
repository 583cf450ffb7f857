"""What the ranks of an elastic job hold of a Keras model and its optimizer."""

from typing import Any

import keras

from tfdist.compat.keras.own_reduction import optimizers_in
from tfdist.horovod.elastic.tensorflow_state import TensorFlowState
from tfdist.horovod.reducing_optimizer import ReducingOptimizer


class TensorFlowKerasState(TensorFlowState):
    """A model, its optimizer, and values such as the epoch, over interruptions.

    Where the optimizer has no variables yet, they are made; Horovod's examples train
    one step for this. The states of random layers are not part of the state, nor are
    gradients of `backward_passes_per_step` that were added up and not applied yet.

    Args:
        model: A Keras model, built.
        optimizer: Its optimizer. Default None: the one it was compiled with.
        backend: Of TensorFlow 1, where it gave the session. It has had no effect since
            TensorFlow 2, in Horovod neither. Default None.
        **kwargs: Further values, such as `epoch=0` and `batch=0`, which become
            attributes of the state.

    Raises:
        ValueError: If the model is not built, or has no optimizer.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> state = TensorFlowKerasState(model, keras.optimizers.Adam(), epoch=0)
        >>> len(model.weights), len(state.variables)
        (2, 8)
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any = None,
        backend: Any = None,
        **kwargs: Any,
    ) -> None:
        if not model.built:
            raise ValueError(
                f"The model must be built. Received: the model {model.name!r} without "
                "variables. Begin it with keras.Input, or call "
                "model.build(input_shape)."
            )
        if optimizer is None:
            optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            raise ValueError(
                "The state must have an optimizer. Received: optimizer=None, and the "
                f"model {model.name!r}, which was not compiled with one. "
                "Compile the model first, or give the optimizer."
            )
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.model = model
        self.optimizer = optimizer
        super().__init__([*model.weights, *optimizer.variables], **kwargs)

    def restore(self) -> None:
        """Go back to what was saved last; of a step of several passes, begin anew."""
        self._drop_passes()
        super().restore()

    def sync(self) -> None:
        """Give every rank what rank 0 has, and save it.

        Of a step that several passes make, some ranks may have made more than others,
        and new ones none: all begin it anew.

        Raises:
            RuntimeError: On every rank, if the ranks have different variables.
        """
        self._drop_passes()
        super().sync()

    def reset(self) -> None:
        """Compile the step anew: how many ranks there are may be a constant of it."""
        if self.model.train_function is not None:
            self.model.make_train_function(force=True)

    def _drop_passes(self) -> None:
        """Drop the sums of gradients that were not applied yet."""
        for optimizer in optimizers_in(self.optimizer):
            if isinstance(optimizer, ReducingOptimizer):
                optimizer.drop_passes()


class KerasState(TensorFlowKerasState):
    """A model, its optimizer, and values such as the epoch, over interruptions.

    `hvd.elastic.run` makes it equal on all ranks before each call, and takes it back to
    the last `commit` when a rank was lost.

    Args:
        model: A Keras model, built.
        optimizer: Its optimizer. Default None: the one it was compiled with.
        **kwargs: Further values, such as `epoch=0` and `batch=0`, which become
            attributes of the state.

    Raises:
        ValueError: If the model is not built, or has no optimizer.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> state = KerasState(model, batch=0, epoch=0)
        >>> state.batch = 7
        >>> state.commit()
        >>> state.batch = 8
        >>> state.restore()
        >>> state.batch
        7
    """

    def __init__(
        self, model: keras.Model, optimizer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(model, optimizer=optimizer, **kwargs)
