"""LARS: its numbers, what it leaves out, in which types it computes, and its files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.optimizers import Lars

STEPS = 5


def arrays(*shapes, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape) for shape in shapes]


def variables_of(values, dtype="float64"):
    return [
        keras.Variable(value, dtype=dtype, name=f"variable_{number}")
        for number, value in enumerate(values)
    ]


def apply(optimizer, variables, steps=STEPS):
    """Apply gradients that differ in each step, and return the variables."""
    for step in range(steps):
        grads = arrays(*(v.shape for v in variables), seed=step + 1)
        optimizer.apply(
            [tf.constant(g, v.dtype) for g, v in zip(grads, variables, strict=True)],
            variables,
        )
    return [variable.numpy() for variable in variables]


def kept_of(optimizer):
    """Return what an optimizer keeps, by name."""
    return {v.name: v.numpy() for v in optimizer.variables if v.name != "iteration"}


# The paper's update, in NumPy.


def by_hand(weight, rates, momentum=0.9, trust=0.001, decay=0.0, epsilon=1e-8):
    """Return weight and velocity after one step for each rate, as in the paper."""
    weight, velocity = weight.copy(), np.zeros_like(weight)
    for step, rate in enumerate(rates):
        (gradient,) = arrays(weight.shape, seed=step + 1)
        weight_norm, gradient_norm = np.linalg.norm(weight), np.linalg.norm(gradient)
        ratio = trust * weight_norm / (gradient_norm + decay * weight_norm + epsilon)
        decayed = gradient + decay * weight
        velocity = momentum * velocity + rate * ratio * decayed
        weight = weight - velocity
    return weight, velocity


OPTIONS = {
    "nothing": {},
    "weight_decay": {"weight_decay": 0.5},
    "epsilon": {"epsilon": 0.5},
    "all": {
        "momentum": 0.75,
        "trust_coefficient": 0.02,
        "weight_decay": 0.1,
        "epsilon": 0.0,
    },
}
IN_THE_PAPER = {"trust_coefficient": "trust", "weight_decay": "decay"}


@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 2, 4)], ids=["matrix", "kernel"])
@pytest.mark.parametrize("row", OPTIONS)
def test_it_is_the_paper_s_update(row, shape):
    options = OPTIONS[row]
    (start,) = arrays(shape)
    optimizer = Lars(4.0, **options)
    (found,) = apply(optimizer, variables_of([start]))

    arguments = {IN_THE_PAPER.get(name, name): v for name, v in options.items()}
    weight, velocity = by_hand(start, [4.0] * STEPS, **arguments)
    assert np.abs(weight - start).max() > 1e-3
    np.testing.assert_allclose(found, weight, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        kept_of(optimizer)["variable_0_momentum"], -velocity, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize(
    ("weight", "gradient", "expected"),
    [
        # As SGD with L2: 0 - 0.5 * 2, and 3 - 0.5 * 0.25 * 3.
        ([[0.0, 0.0]], [[2.0, 0.0]], [[-1.0, 0.0]]),
        ([[3.0, 4.0]], [[0.0, 0.0]], [[2.625, 3.5]]),
    ],
    ids=["weight", "gradient"],
)
def test_the_ratio_is_1_where_a_norm_is_0(weight, gradient, expected):
    variable = keras.Variable(weight)
    optimizer = Lars(0.5, weight_decay=0.25, epsilon=0.0)
    optimizer.apply([tf.constant(gradient)], [variable])

    assert variable.numpy().tolist() == expected


# What is left out.


def test_biases_are_updated_as_by_sgd_to_the_bit():
    starts = arrays((4,), (), (7,))
    variables, expected = (
        variables_of(starts, "float32"),
        variables_of(starts, "float32"),
    )
    lars = Lars(0.3, 0.8, weight_decay=0.5)
    sgd = keras.optimizers.SGD(0.3, 0.8)
    apply(lars, variables)
    apply(sgd, expected)

    assert [v.numpy().tolist() for v in variables] == [
        v.numpy().tolist() for v in expected
    ]
    found, of_sgd = kept_of(lars), kept_of(sgd)
    assert found.keys() == of_sgd.keys()
    for name, value in of_sgd.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.fixture
def layers():
    """Return a model whose variables have the names of their layers in their paths."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, name="first"),
            keras.layers.BatchNormalization(name="normalisation"),
            keras.layers.Dense(2, name="last"),
        ]
    )
    # Where all of a variable is 1, and its gradient, its norm tells the ratio.
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
    return model


def adapted_in(model, **options):
    optimizer = Lars(1.0, trust_coefficient=0.25, **options)
    variables = model.trainable_variables
    optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    adapted = [v.path for v in variables if np.allclose(v.numpy(), 0.75, atol=1e-6)]
    # Without the name of the model.
    return {"/".join(path.split("/")[-2:]) for path in adapted}


KERNELS = {"first/kernel", "last/kernel"}
BIASES = {"first/bias", "last/bias"}
NORMALISATION = {"normalisation/gamma", "normalisation/beta"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, KERNELS),
        (["bias", "normalisation"], KERNELS),
        (("first", "gamma"), {"last/kernel", "last/bias", "normalisation/beta"}),
        ([], KERNELS | BIASES | NORMALISATION),
    ],
    ids=["default", "as by default", "others", "nothing"],
)
def test_words_say_what_is_not_adapted(layers, words, expected):
    assert adapted_in(layers, exclude_from_adaptation=words) == expected


# Types, and sparse gradients.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_are_computed_in_float32(dtype):
    # The square of 512 is larger than what float16 holds, that of 2**-13 smaller.
    variable = keras.Variable([[512.0] * 4] * 4, dtype=dtype)
    gradient = tf.constant([[2.0**-13] * 4] * 4, dtype)
    optimizer = Lars(1.0, trust_coefficient=0.25, epsilon=0.0)
    optimizer.apply([gradient], [variable])

    assert keras.backend.standardize_dtype(variable.dtype) == dtype
    np.testing.assert_array_equal(variable.numpy().astype("float32"), 512 * 0.75)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.5}])
def test_a_sparse_gradient_counts_as_the_dense_one(options):
    rows = tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])
    sparse = tf.IndexedSlices(rows, tf.constant([3, 1, 3]), tf.constant([5, 2]))
    dense = tf.constant([[0, 0], [3.0, -1.0], [0, 0], [1.5, 2.5], [0, 0]])
    starts = arrays((5, 2))
    ends = []
    for gradient in (sparse, dense):
        optimizer = Lars(4.0, **options)
        (variable,) = variables_of(starts, "float32")
        for _ in range(STEPS):
            optimizer.apply([gradient], [variable])
        ends.append(variable.numpy())

    np.testing.assert_allclose(*ends, rtol=1e-6)
    # Decay changes rows without a gradient, too.
    assert (ends[0][0] != starts[0][0].astype("float32")).any() == bool(options)


# In training.


def lars(**options):
    return Lars(0.05, trust_coefficient=0.2, **{"weight_decay": 1e-4, **options})


def test_xla_computes_the_same():
    def end(jit_compile):
        weight, bias = variables_of([np.full((4, 3), 0.5), np.ones(3)], "float32")
        optimizer = lars(use_ema=True, clipvalue=0.5)
        optimizer.build([weight, bias])

        @tf.function(jit_compile=jit_compile)
        def step(gradient):
            optimizer.apply([gradient, gradient[0]], [weight, bias])

        for gradient in arrays((4, 3), (4, 3)):
            step(tf.constant(gradient, tf.float32))
        return [weight.numpy(), bias.numpy()]

    for one, other in zip(end(True), end(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# Files.


def test_a_config_tells_all():
    options = {
        "momentum": 0.5,
        "trust_coefficient": 0.02,
        "weight_decay": 0.1,
        "epsilon": 1e-6,
        "exclude_from_adaptation": ["bias"],
        "name": "mine",
        "clipnorm": 1.0,
        "use_ema": True,
    }
    optimizer = Lars(2.0, **options)
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(optimizer)
    )

    assert type(copy) is Lars
    assert copy.get_config() == optimizer.get_config()
    assert options.items() <= copy.get_config().items()
    assert copy.get_config()["learning_rate"] == 2.0


# Errors.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"momentum": 1.0},
            ValueError,
            r"^momentum must be at least 0 and below 1\. "
            r"Received: momentum=1\.0\. Use 0\.9, or 0 for none\.$",
        ),
        ({"momentum": float("nan")}, ValueError, r"Received: momentum=nan\."),
        (
            {"trust_coefficient": 0},
            ValueError,
            r"^trust_coefficient must be positive\. "
            r"Received: trust_coefficient=0\. Use 0\.001\.$",
        ),
        (
            {"weight_decay": -1.0},
            ValueError,
            r"^weight_decay must not be negative\. "
            r"Received: weight_decay=-1\.0\. Use 0 for none\.$",
        ),
        (
            {"epsilon": -1e-8},
            ValueError,
            r"epsilon must not .* Received: epsilon=-1e-08",
        ),
        (
            {"exclude_from_adaptation": "bias"},
            TypeError,
            r"^exclude_from_adaptation must be a list of words\. Received: "
            r"exclude_from_adaptation='bias'\. Use \['bias'\]\.$",
        ),
        ({"nesterov": True}, ValueError, r"not recognized: \{'nesterov': True\}"),
    ],
)
def test_arguments_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        Lars(0.1, **options)
