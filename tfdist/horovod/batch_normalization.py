"""Batch normalization over the batches of all ranks."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import name_in_graph
from tfdist.compat.keras.layers import SharedBatchNormalization
from tfdist.horovod.native import native


@keras.saving.register_keras_serializable(package="tfdist")
class SyncBatchNormalization(SharedBatchNormalization):
    """Normalizes in training by the mean and the variance over all ranks' batches.

    Every rank counts the same, whatever the size of its batch. A model with this layer
    loads where `tfdist.horovod` is imported. Under `HorovodStrategy` use Keras's own
    `BatchNormalization(synchronized=True)` instead.

    Args:
        fused: False, as in Horovod; Keras 3 has no fused kind to turn off.
        **kwargs: What `keras.layers.BatchNormalization` takes.

    Raises:
        ValueError: If `fused` is not False.

    Example:
        >>> import tfdist.horovod as hvd
        >>> hvd.init()
        >>> hvd.SyncBatchNormalization(momentum=0.9).momentum
        0.9
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError(
                "fused must be False: the fused kernel knows this rank's batch only. "
                f"Received: fused={fused!r}. Leave it out."
            )
        super().__init__(**kwargs)

    def average(self, moments: Any) -> Any:
        """Average the batch's moments over all ranks."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def average(own: Any) -> Any:
            def backward(upstream: Any) -> Any:
                # Horovod's own gradient takes its name from the model's layers.
                return _average(upstream, "tfdist_moments_gradient")

            return _average(own, "tfdist_moments"), backward

        return average(moments)


def _average(tensor: Any, name: str) -> Any:
    """Average a tensor over ranks, under a name that is the same on all of them."""
    return native.allreduce(
        tensor, op=native.Average, name=name_in_graph(name), ignore_name_scope=True
    )
