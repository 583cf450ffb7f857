"""What the ranks of an elastic job hold of a list of variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from horovod.common.elastic import ObjectState

from tfdist.horovod.elastic.recovery import failures_of_peers
from tfdist.horovod.native import native
from tfdist.horovod.variables import broadcast_equal


class TensorFlowState(ObjectState):  # type: ignore[misc]
    """Variables, and values such as the epoch, over interruptions.

    What is committed is copied into the memory of each rank. (In Horovod under
    TensorFlow 2, variables are sent when the state is made and never again; here they
    are sent in `sync`, so that a rank that joins later has them, too.)

    Args:
        variables: Variables of TensorFlow or of Keras, in the same order on all ranks.
        session: Of TensorFlow 1; must be None.
        **kwargs: Further values, such as `epoch=0`, which become attributes of the
            state. They are sent to other ranks, so they must be such as pickle takes.

    Raises:
        ValueError: If there are no variables, or if a session is given.

    Example:
        >>> import tensorflow as tf
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> variable = tf.Variable(1.0)
        >>> state = TensorFlowState([variable], epoch=0)
        >>> state.epoch = variable.assign(7.0).numpy()
        >>> state.restore()
        >>> float(variable.numpy()), state.epoch
        (1.0, 0)
    """

    def __init__(
        self,
        variables: Sequence[Any] | None = None,
        session: Any = None,
        **kwargs: Any,
    ) -> None:
        if session is not None:
            raise ValueError(
                "session must be None, because TensorFlow 2 has none. "
                f"Received: session={session!r}. Leave it out."
            )
        if not variables:
            raise ValueError(
                "variables must hold the variables of the state, because TensorFlow 2 "
                f"does not list them all. Received: variables={variables!r}. "
                "For a model of Keras, use KerasState(model)."
            )
        self.variables = [*variables]
        self._saved_values: list[Any] = []
        self._save_values()
        super().__init__(bcast_object=_broadcast_object, get_rank=native.rank, **kwargs)

    def save(self) -> None:
        """Keep a copy of everything, to which `restore` goes back."""
        self._save_values()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved last."""
        for variable, value in zip(self.variables, self._saved_values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give every rank what rank 0 has, and save it.

        Raises:
            RuntimeError: On every rank, if the ranks have different variables.
        """
        with failures_of_peers():
            broadcast_equal(self.variables, 0, "the elastic state")
        self._save_values()
        super().sync()

    def _save_values(self) -> None:
        """Copy the values of the variables."""
        # The array of a variable in the host's memory may be that memory itself.
        self._saved_values = [np.array(one.numpy()) for one in self.variables]


def _broadcast_object(value: Any) -> Any:
    """Return rank 0's value."""
    with failures_of_peers():
        return native.broadcast_object(value, name="tfdist.elastic")
