"""The equality matrix: every metric of Keras, exactly, on uneven data."""

from functools import partial

import numpy as np
import pytest
from equality_clusters import PLAIN
from equality_matrix import everywhere, on_processes
from equality_models import arrays, compiled, data, state

# By the kind of model that has such outputs: metrics, and their arguments.
BINARY = {
    "AUC": {},
    "BinaryAccuracy": {},
    "BinaryCrossentropy": {},
    "BinaryIoU": {},
    "FalseNegatives": {},
    "FalsePositives": {"thresholds": [0.2, 0.5, 0.8]},
    "Hinge": {},
    "MeanMetricWrapper": {"fn": "fraction"},
    "Precision": {},
    "PrecisionAtRecall": {"recall": 0.5},
    "Recall": {"thresholds": 0.3},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "SquaredHinge": {},
    "TrueNegatives": {},
    "TruePositives": {},
}
REGRESSION = {
    "ConcordanceCorrelation": {},
    "CosineSimilarity": {},
    "LogCoshError": {},
    "MeanAbsoluteError": {},
    "MeanAbsolutePercentageError": {},
    "MeanSquaredError": {},
    "MeanSquaredLogarithmicError": {},
    "PearsonCorrelation": {},
    "Poisson": {},
    "R2Score": {},
    "RootMeanSquaredError": {},
}
CATEGORICAL = {
    "CategoricalAccuracy": {},
    "CategoricalCrossentropy": {},
    "CategoricalHinge": {},
    "F1Score": {},
    "FBetaScore": {"beta": 2.0, "average": "macro"},
    "KLDivergence": {},
    "OneHotIoU": {"num_classes": 4, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 4},
}
SPARSE = {
    "IoU": {"num_classes": 4, "target_class_ids": [0, 2], "sparse_y_pred": False},
    "MeanIoU": {"num_classes": 4, "sparse_y_pred": False},
    "SparseCategoricalAccuracy": {},
    "SparseCategoricalCrossentropy": {},
}
CHOICE = {"Accuracy": {}}
# TensorFlow has their operation for float32 only.
TOP = {"TopKCategoricalAccuracy": {"k": 2}}
SPARSE_TOP = {"SparseTopKCategoricalAccuracy": {"k": 2}}
OWN = {"Mean", "Sum"}
COUNTS = ("FalseNegatives", "FalsePositives", "TrueNegatives", "TruePositives")


def fraction(y_true, y_pred):
    import keras

    return keras.ops.mean(keras.ops.cast(y_pred > 0.5, "float64"), axis=-1)


def made(metrics):
    """Make those that Keras has; they are logged under the names of their classes."""
    import keras

    return [
        getattr(keras.metrics, name)(
            **{key: fraction if key == "fn" else arguments[key] for key in arguments},
            name=name,
        )
        for name, arguments in metrics.items()
        if hasattr(keras.metrics, name)
    ]


def dense(units, activation):
    import keras

    layers = [keras.Input((8,)), keras.layers.Dense(units, activation=activation)]
    return keras.Sequential(layers)


def classes(x):
    """One of four classes by two signs."""
    return ((x[:, :1] > 0) + 2 * (x[:, 1:2] > 0)).astype("int64")


def train(strategy, model, y_of, loss, **options):
    """Train and evaluate on batches of which the last has a single row."""
    x, _ = data(97)
    feed = {**arrays(x, y_of(x)), "batch_size": 32}
    with strategy.scope():
        model = compiled(model(), loss=loss, **options)
    history = model.fit(**feed, epochs=2, verbose=0)
    evaluated = model.evaluate(**feed, verbose=0, return_dict=True)
    # What the metrics say now is of all ranks, too.
    results = {k: np.array(v) for k, v in model.get_metrics_result().items()}
    model.reset_metrics()
    reset = {k: np.array(v) for k, v in model.get_metrics_result().items()}
    ends = {"evaluate": evaluated, "results": results, "reset": reset}
    return {**state(model, history), **ends}


def one_output(units, activation, y_of, loss, metrics):
    """Return a row: a model of one layer, and these metrics."""

    def row(strategy):
        if metrics in (TOP, SPARSE_TOP):
            import keras

            keras.config.set_floatx("float32")
        with strategy.scope():
            measured = made(metrics)
        model = partial(dense, units, activation)
        return train(strategy, model, y_of, loss, metrics=measured)

    return row


def sign(x):
    return (x[:, :1] + x[:, 1:2] ** 2 > 0.5).astype("int64")


def one_hot(x):
    return np.eye(4)[classes(x)[:, 0]]


def positive(x):
    return np.abs(x[:, :3]) + 0.1


def chosen(strategy):
    """Metrics of classes, and of the chosen class itself."""
    import keras

    def model():
        inputs = keras.Input((8,))
        kind = keras.layers.Dense(4, activation="softmax", name="kind")(inputs)
        choice = keras.layers.Lambda(
            lambda kind: keras.ops.cast(
                keras.ops.argmax(kind, axis=-1, keepdims=True), "float64"
            ),
            name="choice",
        )(kind)
        return keras.Model(inputs, {"kind": kind, "choice": choice})

    with strategy.scope():
        metrics = {"kind": made(SPARSE), "choice": made(CHOICE)}
    return train(
        strategy,
        model,
        lambda x: {"kind": classes(x), "choice": classes(x)},
        {"kind": "sparse_categorical_crossentropy", "choice": None},
        metrics=metrics,
    )


def of_its_own(strategy):
    """Metrics that a model updates by itself, and one that a user wrote."""
    import keras

    class Largest(keras.metrics.Metric):
        """Counts how often each output was the largest."""

        def __init__(self):
            super().__init__(name="largest")
            self.counts = self.add_variable((4,), "zeros", dtype="int64", name="counts")

        def update_state(self, y_true, y_pred, sample_weight=None):
            largest = keras.ops.one_hot(keras.ops.argmax(y_pred, axis=-1), 4)
            counts = keras.ops.cast(keras.ops.sum(largest, axis=0), "int64")
            self.counts.assign(self.counts + counts)

        def result(self):
            return {f"largest {i}": self.counts[i] for i in range(4)}

    class Own(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.mean = keras.metrics.Mean(name="mean of rows")
            self.mean_of_means = keras.metrics.Mean(name="mean of batches")
            self.sum = keras.metrics.Sum(name="sum")

        def compute_loss(self, x=None, y=None, y_pred=None, *options):
            self.mean.update_state(y_pred[:, 0])
            self.mean_of_means.update_state(keras.ops.mean(y_pred[:, 0] ** 2))
            self.sum.update_state(y_pred[:, 1])
            return super().compute_loss(x, y, y_pred, *options)

    return train(
        strategy,
        lambda: Own(dense(4, "softmax").layers),
        one_hot,
        "categorical_crossentropy",
        metrics=[Largest()],
    )


def under_other_names(strategy):
    """A step that returns metrics by other names, counts, a vector and an integer."""
    import keras

    class Tracking(keras.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.error = keras.metrics.Mean(name="mean of errors")
            self.hits = keras.metrics.Sum(name="sum of hits")
            self.rows = keras.metrics.Sum(name="sum of rows")
            self.steps = keras.metrics.Sum(name="sum of steps")

        def train_step(self, data):
            super().train_step(data)
            (x, y), argmax = data, keras.ops.argmax
            y_pred = self(x)
            hits = keras.ops.equal(argmax(y, axis=-1), argmax(y_pred, axis=-1))
            self.error.update_state(keras.ops.mean(keras.ops.abs(y - y_pred)))
            self.hits.update_state(keras.ops.sum(keras.ops.cast(hits, "float64")))
            self.rows.update_state(keras.ops.shape(x)[0])
            self.steps.update_state(1)
            return {
                "error": self.error.result(),
                "hits": self.hits.result(),
                "others": {"rows": self.rows.result(), "steps": self.steps.result()},
                "mean": keras.ops.mean(x, axis=0),
                "iterations": self.optimizer.iterations,
            }

        def test_step(self, data):
            return {"error": super().test_step(data)["loss"]}

    found = train(
        strategy,
        lambda: Tracking(dense(4, "softmax").layers),
        one_hot,
        "categorical_crossentropy",
    )
    found["history"]["mean"] = np.array(found["history"]["mean"])
    return found


ROWS = {
    "binary": one_output(1, "sigmoid", sign, "binary_crossentropy", BINARY),
    "regression": one_output(3, "softplus", positive, "mse", REGRESSION),
    "categories": one_output(
        4, "softmax", one_hot, "categorical_crossentropy", CATEGORICAL
    ),
    "classes": chosen,
    "top": one_output(4, "softmax", one_hot, "categorical_crossentropy", TOP),
    "top, sparse": one_output(
        4, "softmax", classes, "sparse_categorical_crossentropy", SPARSE_TOP
    ),
    "of its own": of_its_own,
    "under other names": under_other_names,
}
# Of each, another row of `make test` has the subject too.
VARIANTS = [
    "top, sparse",
    "classes",
]
# What `make test` runs; the others differ from one of them in less.
QUICK = [
    "binary",
    "categories",
    "of its own",
]


@pytest.mark.parametrize(
    ("row", "column"), everywhere(ROWS, quick=QUICK, variants=VARIANTS)
)
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)


@pytest.mark.parametrize(
    ("row", "column"), on_processes(ROWS, ["binary"], quick=QUICK, variants=VARIANTS)
)
def test_counts_are_exact(cells, column, row):
    (right,) = cells.by_rank(row, PLAIN)
    ended = cells.by_rank(row, column)[0]

    for count in COUNTS:
        for logs in ("history", "evaluate"):
            np.testing.assert_array_equal(ended[logs][count], right[logs][count])


def test_every_metric_of_keras_has_a_row():
    import keras

    metrics = {
        name
        for name, value in vars(keras.metrics).items()
        if isinstance(value, type) and value is not keras.metrics.Metric
    }
    rows = {
        *BINARY,
        *REGRESSION,
        *CATEGORICAL,
        *SPARSE,
        *CHOICE,
        *OWN,
        *TOP,
        *SPARSE_TOP,
    }

    assert metrics - rows == set()
