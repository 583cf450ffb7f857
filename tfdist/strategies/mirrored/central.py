"""Weights on one device, which several devices read."""

from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import UpdateContext
from tfdist.strategies.mirrored.extended import MirroredReplicasExtended


class CentralStorageExtended(MirroredReplicasExtended):
    """Keeps weights, and what optimizers keep of each, on one device.

    What layers change as they compute, such as moving statistics, has a copy on every
    device, as under a mirrored strategy.

    Args:
        parameter_device: The full name of the device of the weights.
        *args: See `MirroredReplicasExtended`.
    """

    def __init__(self, parameter_device: str, *args: Any) -> None:
        self._parameter_device = parameter_device
        super().__init__(*args)
        for hooks in (self._process_hooks, *self._process_hooks.replicas):
            hooks.updates_once = True

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of the weights."""
        return (self._parameter_device,)

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        beside = kwargs.get("colocate_with")
        is_of_weight = isinstance(beside, tf.Variable) and not _has_copies(beside)
        is_weight = kwargs.get("trainable") is not False and (
            kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ
        )
        if not (is_of_weight or is_weight):
            return super()._create_variable(next_creator, **kwargs)
        kwargs.pop("colocate_with", None)
        with tf.device(self._parameter_device):
            variable = next_creator(**kwargs)
        self._process_hooks.created.add(variable)
        return variable

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        """Accept weights, too."""
        if _has_copies(colocate_with_variable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if _has_copies(var):
            return super()._update(var, fn, args, kwargs, group)
        # What else is read, such as a learning rate, is the first device's copy.
        with tf.device(self._parameter_device), UpdateContext(0):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


def _has_copies(variable: Any) -> bool:
    """Say whether every device has a copy of a variable."""
    return isinstance(variable, tf.distribute.DistributedValues)
