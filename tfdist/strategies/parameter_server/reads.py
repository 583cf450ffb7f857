"""What a step reads from the servers: each variable once, in one message from each."""

from collections.abc import Iterator
from contextlib import contextmanager
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
        self._late: list[LateValue] = []

    def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Begin the trace of a step; TensorFlow may trace it more than once.

        Returns:
            How many updates the variables had seen when they were read; and what is
            there before any of them is.
        """
        self._variables, self._late = [], []
        self._begun = LateValue(_spec_of(self._version))
        return self.value(self._version), self._begun.symbol

    def value(self, variable: tf.Variable) -> tf.Tensor:
        """Return what stands for the value of a variable in the step.

        Args:
            variable: A `tf.Variable` that lies on one server.
        """
        for known, late in zip(self._variables, self._late, strict=True):
            if known is variable:
                return late.symbol
        self._variables.append(variable)
        self._late.append(LateValue(_spec_of(variable)))
        return self._late[-1].symbol

    def end(self, function: Any) -> None:
        """End the trace of a step.

        Args:
            function: The concrete function that came of it. Call it within `reading`
                only.
        """
        LateValue.bind(function, [self._begun, *self._late])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what the step needs, for a call of it in the block."""
        with tf.device(self._version.device):
            begun = self._version.read_value()
        devices = [variable.device for variable in self._variables]
        bundles = bundled(devices, list(map(_spec_of, self._variables)))
        tensors = []
        for bundle in bundles:
            with tf.device(bundle.device), tf.control_dependencies([begun]):
                variables = [self._variables[member] for member in bundle.members]
                tensors.append(
                    bundle.pack(
                        [begun if v is self._version else _read(v) for v in variables]
                    )
                )
        values = [begun, *unpacked(bundles, tensors)]
        late_values = [self._begun, *self._late]
        for late, value in zip(late_values, values, strict=True):
            late.value = value
        try:
            yield
        finally:
            for late in late_values:
                late.value = None


def _read(variable: tf.Variable) -> tf.Tensor:
    """Read a variable on the device where it lies, without telling tapes of it."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _spec_of(variable: tf.Variable) -> Any:
    """Return the spec of what a variable holds."""
    return tf.TensorSpec(variable.shape, variable.dtype)
