"""How many examples Keras has counted in an epoch."""

import keras


def counted_by_keras(model: keras.Model, steps: int) -> float:
    """Return the weight of Keras's mean loss: each step adds its rows.

    To read it waits for the device, so it is read twice an epoch and not in every step.

    Args:
        model: A model in training.
        steps: Steps of this epoch that are done.

    Returns:
        The examples of this process in these steps.

    Raises:
        ValueError: If the model counts something else.
    """
    tracker = next(filter(_is_mean_loss, model.metrics), None)
    # The cast makes a plain tensor also of the variables of TensorFlow's strategies.
    counted = (
        0.0 if tracker is None else float(keras.ops.cast(tracker.count, "float64"))
    )
    counts_rows = tracker is not None and (
        getattr(model.train_step, "__func__", None) is keras.Model.train_step
        and type(model).metrics is keras.Model.metrics
    )
    # A mean of scalars, as in many a custom train_step, weighs each step at most 1.
    if not counts_rows and steps and counted <= steps:
        raise ValueError(
            "examples_per_step must be given for a model whose train_step or metrics "
            "do not count its examples. Received: examples_per_step=None, and a mean "
            f"loss of weight {counted:g} after {steps} steps of {model.name!r}. "
            "Pass the global batch size: Throughput(examples_per_step=64)."
        )
    return counted


def _is_mean_loss(metric: keras.Metric) -> bool:
    """Tell whether a metric is a mean loss whose type can hold a number of rows."""
    return (
        metric.name == "loss"
        and isinstance(metric, keras.metrics.Mean)
        and metric.count.dtype in ("float32", "float64")
    )
