"""Batch normalization over the batches of all ranks."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import name_in_graph
from tfdist.compat.keras.layers import SharedBatchNormalization
from tfdist.horovod.native import native


@keras.saving.register_keras_serializable(package="tfdist")
class SyncBatchNormalization(SharedBatchNormalization):
    """Batch normalization whose training statistics cover the batches of all ranks.

    Every rank has equal weight, whatever the size of its batch. Import `tfdist.horovod`
    before you load a model with this layer. Under `HorovodStrategy` use Keras's
    `BatchNormalization(synchronized=True)` instead.

    Args:
        fused: Must be False, as in Horovod; Keras 3 has no fused kernel.
        **kwargs: The arguments of `keras.layers.BatchNormalization`.

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

        @tf.custom_gradient
        def average(own: Any) -> Any:
            def backward(upstream: Any) -> Any:
                # Horovod's gradient uses layer names, which ranks may not share.
                return _average(upstream, "tfdist_moments_gradient")

            return _average(own, "tfdist_moments"), backward

        return average(moments)


def _average(tensor: Any, name: str) -> Any:
    """Average a tensor over ranks, under a name that is equal on all of them."""
    return native.allreduce(
        tensor, op=native.Average, name=name_in_graph(name), ignore_name_scope=True
    )
