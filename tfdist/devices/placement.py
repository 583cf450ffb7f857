"""Where operations run."""

import tensorflow as tf

from tfdist.compat.tensorflow import has_started
from tfdist.devices.starting import before_start


def log_placement() -> None:
    """Let TensorFlow print on which device each operation runs.

    The operations of a `tf.function` go to standard output while TensorFlow builds it.
    Those that run by themselves go to standard error, and only where
    TF_CPP_MIN_LOG_LEVEL is 0 or not set; `tensor.device` says the same. It stays on
    until the process ends.

    Raises:
        RuntimeError: If TensorFlow has already started its devices; then it would
            print nothing.

    Example:
        >>> log_placement()  # doctest: +SKIP
    """
    with before_start("Placement must be logged", "log_placement()"):
        if has_started():
            raise RuntimeError("an operation has run")
        tf.debugging.set_log_device_placement(True)
