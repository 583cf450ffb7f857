"""Variables of a run: to the bit on as many ranks, shared out on others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.callbacks.run_state import (
    AVERAGED,
    EQUAL,
    SUMMED,
    RunVariables,
    Saved,
)
from tfdist.collectives import SingleCollective

DTYPES = ["bfloat16", "float16", "float32", "int32", "int64", "uint8", "bool"]


class Layer(keras.layers.Layer):
    """Holds what a training may hold: a weight, a statistic, and others."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=(2,), name="kernel")
        self.statistic = self.add_weight(shape=(2,), name="mean", trainable=False)
        for dtype in DTYPES:
            options = {"trainable": False, "initializer": "ones", "dtype": dtype}
            self.add_weight(shape=(3,), name=dtype, **options)

    def call(self, inputs):
        return inputs * self.kernel


def trained(optimizer="sgd", steps=1):
    """Return a model after some steps."""
    model = keras.Sequential([keras.Input((2,)), Layer()])
    model.compile(optimizer, "mse", metrics=["mae"])
    x = np.ones((steps, 2), "float32")
    model.fit(x, 3 * x, batch_size=1, verbose=0)
    return model


@pytest.fixture(scope="module")
def three():
    """Models of three ranks."""
    return [trained() for _ in range(3)]


@pytest.fixture
def models(three):
    """The same, with values that differ where ranks may differ."""
    for rank, model in enumerate(three):
        layer = model.layers[0]
        layer.kernel.assign([0.1, -0.2])
        layer.statistic.assign([rank + 0.1, 2.0 * rank])
        model.metrics[0].total.assign(10.0 + rank)
        model.metrics[0].count.assign(rank + 1.0)
        model.metrics[1].reset_state()
    return three


@pytest.fixture
def save(on_ranks):
    """Return what the ranks of some models have; a file has been through it."""

    def save(models, *, with_metrics=True):
        def take(collective):
            mine = RunVariables(models[collective.rank], with_metrics=with_metrics)
            return mine.take(collective)

        found = on_ranks(len(models), take)
        specs, equal, _ = found[0]
        # But for their paths, which are those of several models of one process.
        kinds = [[spec[1:] for spec in of_rank[0]] for of_rank in found]
        assert kinds == kinds[:1] * len(models)
        return Saved([list(spec) for spec in specs], equal, [own for *_, own in found])

    return save


def give(saved, model, rank, size):
    """Let the model of a rank, which has been changed, have its values."""
    for variable in [*model.variables, *model.metrics_variables]:
        variable.assign(tf.zeros_like(variable))
    variables = RunVariables(model, with_metrics=True)
    variables.check(saved.specs, "folder")
    variables.set_others(saved, rank, size)
    variables.set_metrics(saved, rank, size)


def values_of(model):
    """Return the bits of all variables."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [tf.convert_to_tensor(variable).numpy().tobytes() for variable in variables]


def test_every_rank_gets_its_own_to_the_bit(models, save):
    right = [values_of(model) for model in models]
    saved = save(models)
    for rank, model in enumerate(models):
        give(saved, model, rank, 3)

    assert [values_of(model) for model in models] == right
    assert len({tuple(values) for values in right}) == 3


def test_what_is_alike_is_kept_once(models, save):
    saved = save(models)
    kinds = {spec[0].rsplit("/", 1)[-1]: spec[-1] for spec in saved.specs}

    assert (kinds["kernel"], kinds["mean"], kinds["total"]) == (EQUAL, AVERAGED, SUMMED)
    assert {kinds[dtype] for dtype in DTYPES} == {EQUAL}
    for own in saved.by_rank:
        assert {*own}.isdisjoint(saved.equal)
        assert len(own) + len(saved.equal) == len(saved.specs)


def test_statistics_that_are_alike_are_kept_once_too(models, save):
    for model in models:
        model.layers[0].statistic.assign([0.5, 0.5])
    kinds = {spec[0].rsplit("/", 1)[-1]: spec[-1] for spec in save(models).specs}

    assert kinds["mean"] == EQUAL


@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_ranks_share_it(models, save, size):
    saved = save(models)
    for rank in range(size):
        model = models[rank % 3]
        give(saved, model, rank, size)

        layer, loss = model.layers[0], model.metrics[0]
        np.testing.assert_array_equal(layer.kernel, np.float32([0.1, -0.2]))
        # The mean of 0.1, 1.1, 2.1 and that of 0, 2, 4.
        np.testing.assert_allclose(layer.statistic, [1.1, 2.0], rtol=1e-6)
        # 10 + 11 + 12 and 1 + 2 + 3.
        expected = (33.0, 6.0) if rank == 0 else (0.0, 0.0)
        assert (float(loss.total.numpy()), float(loss.count.numpy())) == expected


def test_without_metrics_they_are_left_alone(models, save):
    saved = save(models, with_metrics=False)
    model = models[0]
    model.metrics[0].total.assign(77.0)
    variables = RunVariables(model, with_metrics=False)
    variables.check(saved.specs, "folder")
    variables.set_others(saved, 0, 3)

    assert float(model.metrics[0].total.numpy()) == 77.0
    assert not any(spec[-1] == SUMMED for spec in saved.specs)


def test_gradients_that_accumulate_are_parts_of_sums(save):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    model = trained(optimizer, steps=2)
    saved = save([model])
    right = values_of(model)
    (place,) = [
        place
        for place, spec in enumerate(saved.specs)
        if "gradient_accumulator" in spec[0]
    ]
    assert saved.specs[place][-1] == SUMMED
    assert np.any(saved.value(place, 0, 2))
    np.testing.assert_array_equal(saved.value(place, 1, 2), 0)
    give(saved, model, 0, 1)

    assert values_of(model) == right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        (AVERAGED, 2, [[1, 1, 0], [0, 1, 0]]),
        (SUMMED, 2, [[1, 1, 0], [0, 1, 0]]),
        (SUMMED, 3, [[1, 2, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_every_type_is_shared_out(dtype, kind, size, expected):
    """Of bfloat16 NumPy has the bits only."""
    wanted = tf.as_dtype(dtype).as_numpy_dtype
    values = [np.array(value).astype(wanted) for value in ([1, 1, 0], [0, 1, 0])]
    if dtype == "bfloat16":
        values = [value.view("uint16") for value in values]
    saved = Saved([["v", [3], dtype, kind]], {}, [{"0": value} for value in values])
    got = [saved.value(0, rank, size) for rank in range(size)]

    assert {value.dtype for value in got} == {np.dtype(wanted)}
    right = np.array(expected).astype(wanted)
    assert [value.tolist() for value in got] == right.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_mean_is_of_the_same_type(dtype):
    wanted = tf.as_dtype(dtype).as_numpy_dtype
    values = [np.array(value).astype(wanted) for value in (1.0, 2.0, 6.0)]
    if dtype == "bfloat16":
        values = [value.view("uint16") for value in values]
    saved = Saved([["v", [], dtype, AVERAGED]], {}, [{"0": value} for value in values])
    mean = saved.value(0, 0, 2)

    assert mean.dtype == np.dtype(wanted)
    assert float(mean) == 3.0


def test_numpy_can_write_all_of_it(models, save):
    saved = save(models)

    for values in (saved.equal, *saved.by_rank):
        assert {value.dtype.isbuiltin for value in values.values()} == {1}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_was_taken_stays_as_it_was(optimizer, jit_compile):
    """It is written while the training goes on, which changes variables in place."""
    model = keras.Sequential(
        [keras.Input((1,), dtype="int32"), keras.layers.Embedding(8, 2)]
    )
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    x, y = np.zeros((4, 1), "int32"), np.ones((4, 1, 2), "float32")
    model.fit(x, y, verbose=0)
    _, equal, own = RunVariables(model, with_metrics=True).take(SingleCollective())
    taken = {**equal, **own}
    before = {name: value.copy() for name, value in taken.items()}
    model.fit(x, y, epochs=3, verbose=0)

    for name, value in taken.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([["kernel", [3], "float32", EQUAL]], r"kernel \(3,\) float32"),
        ([["kernel", [2], "float16", EQUAL]], r"kernel \(2,\) float16"),
        ([], "nothing"),
    ],
)
def test_another_model_is_refused(models, save, change, words):
    saved = save(models)
    specs = [*change, *saved.specs[1:]] if change else []
    variables = RunVariables(models[0], with_metrics=True)
    with pytest.raises(
        ValueError,
        match=rf"^backup_dir holds the state of another model or optimizer\. Received: "
        rf"/backup with {words}, where this model has layer[_0-9]*/kernel \(2,\) "
        r"float32\. Make the model that was trained, or remove the folder to train "
        r"from the beginning\.$",
    ):
        variables.check(specs, "/backup")


def test_a_model_with_fewer_variables_is_refused(models, save):
    saved = save(models)
    variables = RunVariables(models[0], with_metrics=False)
    with pytest.raises(ValueError, match=r"where this model has nothing\. Make the"):
        variables.check(saved.specs, "/backup")


def test_paths_may_differ(models, save):
    """They count the layers that a process has made so far."""
    saved = save(models)
    specs = [[f"other/{path}", *rest] for path, *rest in saved.specs]
    variables = RunVariables(models[0], with_metrics=True)

    assert variables.check(specs, "/backup") is None
