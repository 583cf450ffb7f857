"""TensorFlow's strategy for TPUs."""

from typing import Any

import tensorflow as tf

from tfdist.compat.keras import install, options_done_wrong


class TPUStrategy(tf.distribute.TPUStrategy):  # type: ignore[misc]
    """TensorFlow's own, which refuses what it would do wrong under Keras 3.

    It takes the arguments of `tf.distribute.TPUStrategy` and is one. The steps of Keras
    are TensorFlow's and Keras's own here: what `tfdist` does on other devices needs
    collectives that a TPU does not have. What Keras 3 does wrong under them without a
    message is therefore an error when a model is compiled: clipping, which comes before
    the sum over replicas; loss scaling, which looks at one replica alone; gradient
    accumulation, and moving averages of weights.

    It was tried without a TPU only, as far as that goes.

    Args:
        tpu_cluster_resolver: See `tf.distribute.TPUStrategy`. Default None.
        experimental_device_assignment: See there. Default None.
        experimental_spmd_xla_partitioning: See there. Default False.

    Raises:
        RuntimeError: If TensorFlow sees no TPU.
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        experimental_device_assignment: Any = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        if not tf.config.list_logical_devices("TPU"):
            raise RuntimeError(
                "TPUStrategy needs a TPU that TensorFlow has been connected to. "
                "Received: no logical device of type TPU. Call tf.config."
                "experimental_connect_to_cluster(resolver) and tf.tpu.experimental."
                "initialize_tpu_system(resolver) first; on other devices use "
                "MirroredStrategy."
            )
        super().__init__(
            tpu_cluster_resolver,
            experimental_device_assignment,
            experimental_spmd_xla_partitioning,
        )
        install(is_alone=True)

    def check_compiled(self, model: Any) -> None:
        """Refuse what Keras 3 would do wrong under this strategy.

        Args:
            model: A model that has just been compiled.

        Raises:
            ValueError: If its optimizer clips, scales the loss, accumulates gradients
                or averages weights.
        """
        wrong = options_done_wrong(model)
        if wrong:
            raise ValueError(
                "Keras 3 cannot do this right on the replicas of a TPU. Received: an "
                f"optimizer with {', '.join(wrong)}. Leave it out, or train on GPUs "
                "under MirroredStrategy."
            )
