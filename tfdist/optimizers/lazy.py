"""Adam and SGD for large tables, with updates of only the rows of the batch."""

import keras

from tfdist.compat.keras.sharded_optimizer import RowUpdates


@keras.saving.register_keras_serializable(package="tfdist")
class LazyAdam(RowUpdates, keras.optimizers.Adam):  # type: ignore[misc]
    """Adam, without the change of the rows of an `Embedding` that a batch lacks.

    Adam moves every weight in every step, as long as its momentum lasts. Of a large
    table, that takes far longer than the update of the rows in the batch. This
    optimizer gives the rows in the batch the update of `keras.optimizers.Adam` and
    leaves all others as they are, with their momentum, until a batch has them again. So
    the weights differ from those of Adam, unless each batch has all rows. Weights with
    dense gradients get exactly the update of Adam. Weight decay, a moving average of
    the weights and gradient accumulation still change every row.

    It takes the arguments of `keras.optimizers.Adam`. Import `tfdist.optimizers` before
    loading a file with this optimizer.

    Example:
        >>> optimizer = LazyAdam(0.001)

    References:
        `LazyAdamOptimizer` of TensorFlow 1 (`tf.contrib.opt`), `LazyAdam` of TensorFlow
        Addons.
    """


@keras.saving.register_keras_serializable(package="tfdist")
class LazySGD(RowUpdates, keras.optimizers.SGD):  # type: ignore[misc]
    """SGD with momentum, of which a step changes only the rows in the batch.

    As `LazyAdam`, but the rows in the batch get the update of `keras.optimizers.SGD`,
    whose arguments it takes. Without momentum, SGD itself changes only these rows.

    Example:
        >>> optimizer = LazySGD(0.1, momentum=0.9)
    """
