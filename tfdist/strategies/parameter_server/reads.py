"""What a step reads from the servers: each variable once, in one message from each."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat.parameter_server import LateValue
from tfdist.strategies.parameter_server.bundles import bundled, unpacked


class Reads:
    """Finds out what a step reads while it is traced, and reads it where it is called.

    Only the whole step shows which variables it needs. So it is traced with stand-ins,
    and the function that calls it reads all of them first.

    Args:
        version: The variable that counts the updates; all others are read after it.
    """

    def __init__(self, version: tf.Variable) -> None:
        self._version = version
        self._variables: list[tf.Variable] = []
        self._late: dict[int, LateValue] = {}
        self._values: list[tf.Tensor] = []

    def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Begin the trace of a step.

        Returns:
            How many updates the variables had seen when they were read; and what is
            there before any of them is.
        """
        self._begun = LateValue(_spec_of(self._version))
        return self.value(self._version), self._begun.symbol

    def value(self, variable: tf.Variable) -> tf.Tensor:
        """Return what stands for the value of a variable in the step.

        Args:
            variable: A `tf.Variable` that lies on one server.
        """
        if id(variable) not in self._late:
            self._variables.append(variable)
            self._late[id(variable)] = LateValue(_spec_of(variable))
        return self._late[id(variable)].symbol

    def end(self, function: Any) -> None:
        """End the trace of a step.

        Args:
            function: The concrete function that came of it. Call it within `made` only.
        """
        late = [*self._late.values(), self._begun]
        LateValue.fill(
            function, [(one, partial(self._value, i)) for i, one in enumerate(late)]
        )

    @contextmanager
    def made(self) -> Iterator[None]:
        """Read what the step needs, for a call of it in the block."""
        with tf.device(self._version.device):
            begun = self._version.read_value()
        devices = [variable.device for variable in self._variables]
        bundles = bundled(devices, list(map(_spec_of, self._variables)))
        tensors = []
        for bundle in bundles:
            with tf.device(bundle.device), tf.control_dependencies([begun]):
                values = [
                    begun if member == 0 else _read(self._variables[member])
                    for member in bundle.members
                ]
                tensors.append(bundle.pack(values))
        self._values = [*unpacked(bundles, tensors), begun]
        try:
            yield
        finally:
            self._values = []

    def _value(self, number: int) -> tf.Tensor:
        """Return one of the values."""
        return self._values[number]


def _read(variable: tf.Variable) -> tf.Tensor:
    """Read a variable, on the device where it lies."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _spec_of(variable: tf.Variable) -> Any:
    """Return the spec of what a variable holds."""
    return tf.TensorSpec(variable.shape, variable.dtype)
