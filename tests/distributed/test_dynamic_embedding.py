"""Tables without a vocabulary, on servers, against an `Embedding` with one."""

from functools import partial

import numpy as np
import pytest
from equality_comparison import differences
from equality_models import optimizer
from equality_rows import of_keras
from parameter_server_jobs import run, run_rows, succeeded

import tfdist

pytestmark = pytest.mark.slow

BATCH, EPOCHS, DIM, TOLERANCE = 50, 3, 4, 1e-9
# The ids that there are: any 64 bits.
EDGES = [0, -1, 2**63 - 1, -(2**63)]
NUMBERS = np.unique([*EDGES, *np.random.default_rng(5).integers(-(2**63), 2**63, 96)])
WORDS = np.array([f"wörd {i}" * (i % 3 + 1) for i in range(40)] + [""], object)


def data(examples=430):
    """Ids, some of them often and twice in a batch, and what to predict of them."""
    random = np.random.default_rng(7)
    skewed = np.minimum(random.geometric(0.05, (examples, 3)) - 1, len(NUMBERS) - 1)
    x = {
        "items": NUMBERS[skewed],
        "last": NUMBERS[random.integers(0, len(NUMBERS), examples)],
        "word": WORDS[random.integers(0, len(WORDS), examples)],
    }
    y = np.sin(skewed[:, :1]) + np.array([[len(word)] for word in x["word"]]) / 9
    return x, y.astype("float64")


def towers(table):
    """Make a model of two tables, one of which is looked up twice."""
    import keras

    items = keras.Input((3,), name="items", dtype="int64")
    last = keras.Input((), name="last", dtype="int64")
    word = keras.Input((), name="word", dtype=table.words)
    numbers, words = table("numbers", "int64"), table("words", "string")
    found = [keras.layers.Flatten()(numbers(items)), numbers(last), words(word)]
    hidden = keras.layers.Dense(5, activation="tanh")(keras.layers.Concatenate()(found))
    inputs = {"items": items, "last": last, "word": word}
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def dynamic(**options):
    """Return what makes a table."""

    def make(name, id_dtype):
        from tfdist.layers import DynamicEmbedding

        kind = {"id_dtype": id_dtype, "name": name, "seed": len(name)}
        return DynamicEmbedding(DIM, **kind, **options)

    make.words = "string"
    return make


def fixed(initial):
    """Return what makes a plain table, of the ids that the test knows."""

    def make(name, id_dtype):
        import keras

        rows = initial[name]
        initializer = keras.initializers.Constant(rows)
        return keras.layers.Embedding(*rows.shape, initializer, name=name)

    make.words = "int64"
    return make


def vocabularies():
    return {"numbers": NUMBERS, "words": WORDS}


def numbered(x):
    """Return ids as their positions in the vocabularies."""
    places = {word: place for place, word in enumerate(WORDS)}
    return {
        "items": np.searchsorted(NUMBERS, x["items"]),
        "last": np.searchsorted(NUMBERS, x["last"]),
        "word": np.array([places[word] for word in x["word"]]),
    }


def rows_by_id(layer):
    """Return what a table has learned, in the order of the vocabulary."""
    if not hasattr(layer, "export"):
        return layer.get_weights()[0]
    ids, embedding = layer.export()
    rows = dict(zip(ids.tolist(), embedding.get_weights()[0][1:], strict=True))
    assert len(rows) == len(ids) == layer.size()
    return np.stack([rows[one] for one in vocabularies()[layer.name]])


def state(model, history, x, y):
    """Return all that must be equal."""
    return {
        "losses": history.history["loss"],
        "dense": [layer.get_weights() for layer in model.layers[-2:]],
        **{name: rows_by_id(model.get_layer(name)) for name in vocabularies()},
        "predict": model.predict(x, batch_size=BATCH, verbose=0),
        "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0),
        "iterations": int(model.optimizer.iterations),
    }


def trained(optimizer, initial, strategy, callbacks=lambda: [], **options):
    """Train with tables that grow, or else with plain ones of these initial rows."""
    import keras

    x, y = data()
    if initial is not None:
        x = numbered(x)
    with strategy.scope():
        model = towers(dynamic(**options) if initial is None else fixed(initial))
        model.compile(optimizer(), "mse", jit_compile=False)
    first = {}
    if initial is None:
        for name, ids in vocabularies().items():
            ids = keras.ops.convert_to_tensor(ids)
            first[name] = np.array(model.get_layer(name)(ids, training=True))
            assert not np.array(model.get_layer(name)(ids)).any()
    kwargs = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, callbacks=callbacks(), **kwargs)
    return {"initial": first, "model": model, **state(model, history, x, y)}


def row_of(optimizer):
    """Return a row that compares a training; and its initial rows."""

    def row(strategy, initial=None):
        found = trained(optimizer, initial, strategy)
        del found["model"]
        return found

    return row


def scaling():
    return of_keras("optimizers", "LossScaleOptimizer")(optimizer("Adam")(), 8.0)


def grown(strategy, initial=None):
    """Train so many ids that each server gets room several times, and none twice."""
    import keras

    ids = np.random.default_rng(3).permutation(6000) * 977
    with strategy.scope():
        table = dynamic()("numbers", "int64")
        if initial is not None:
            table = fixed(initial)("numbers", "int64")
        inputs = keras.Input((), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(table(inputs)))
        model.compile(optimizer("Adam", 0.05)(), "mse", jit_compile=False)
    first = {}
    if initial is None:
        first["numbers"] = np.array(table(np.arange(6000) * 977, training=True))
    x = ids if initial is None else ids // 977
    y = np.sin(ids)[:, np.newaxis]
    model.fit(x, y, batch_size=750, epochs=2, shuffle=False, verbose=0)
    found = {"initial": first, "predict": model.predict(x, verbose=0)}
    if initial is None:
        ids, embedding = table.export()
        rows = embedding.get_weights()[0][1:][np.argsort(ids)]
        return {**found, "size": table.size(), "rows": rows}
    return {**found, "size": 6000, "rows": table.get_weights()[0]}


RATE = 0.5


def sums(strategy, layer):
    """Make a model whose loss has a gradient of one for each element of a lookup."""
    import keras

    with strategy.scope():
        inputs = keras.Input((), dtype="int64")
        model = keras.Model(inputs, layer(inputs))
        model.compile(
            optimizer("SGD", RATE, momentum=0.9)(),
            lambda y, rows: keras.ops.sum(rows, -1),
            jit_compile=False,
        )
    return model


def make_steps(model, *batches):
    for ids in batches:
        model.train_on_batch(np.array(ids), np.zeros((len(ids), DIM)))


def admitted_late(strategy):
    from tfdist.layers import DynamicEmbedding

    ids, found = np.array([7, 8, 9]), []
    at_once = DynamicEmbedding(DIM, seed=1)
    sums(strategy, at_once)
    layer = DynamicEmbedding(DIM, admit_after=3, seed=1)
    model = sums(strategy, layer)
    for batches in ([[7, 8], [7, 9], [9, 8]], [[7, 7]], [[7, 8]]):
        make_steps(model, *batches)
        found.append((layer.size(), np.array(layer(ids, training=True))))
    return {"found": found, "initial": np.array(at_once(ids, training=True))}


def expired(strategy):
    from tfdist.layers import DynamicEmbedding

    layer = DynamicEmbedding(DIM, expire_steps=3, seed=1)
    model = sums(strategy, layer)
    first, later = np.arange(3000), np.arange(10_000, 12_000)
    initial = np.array(layer(later, training=True))
    # The first fill all the room that there is.
    make_steps(model, first, *[[0, 0]] * 5, later)
    return {
        "ids": np.sort(layer.export()[0]),
        "expected": np.array([0, *later]),
        "forgotten": np.array(layer(first[1:])),
        "steps of new rows": np.array(layer(later)) - initial,
    }


OPTIMIZERS = {
    "Adam": optimizer("Adam", 0.05),
    "LazyAdam": lambda: tfdist.optimizers.LazyAdam(0.05),
    "SGD, momentum, global_clipnorm": optimizer(
        "SGD", 0.1, momentum=0.9, global_clipnorm=0.05
    ),
    "Adagrad": optimizer("Adagrad", 0.1),
    "Adam, loss scale": scaling,
}
EQUAL = {**{name: row_of(make) for name, make in OPTIMIZERS.items()}, "grown": grown}
ROWS = {**EQUAL, "admitted late": admitted_late, "expired": expired}


def run_servers(names, options):
    return run_rows(ROWS, names, **options)


def run_alone(initial):
    rows = {name: partial(ROWS[name], initial=own) for name, own in initial.items()}
    return run_rows(rows, rows)


@pytest.fixture(scope="module")
def sync():
    return run(run_servers, list(ROWS), {"consistency": "sync"}, ps=2)


@pytest.fixture(scope="module")
def in_turn():
    return run(run_servers, ["Adam"], {"consistency": "bounded", "max_staleness": 0})


@pytest.fixture(scope="module")
def alone(sync):
    initial = {name: succeeded(sync, name)["initial"] for name in EQUAL}
    return run(run_alone, initial, workers=None)


def check_equal(found, right):
    found, right = ({**one, "initial": {}} for one in (found, right))
    assert differences(found, right, TOLERANCE) == []


@pytest.mark.parametrize("row", EQUAL)
def test_it_equals_an_embedding_of_the_vocabulary(alone, sync, row):
    check_equal(succeeded(sync, row), succeeded(alone, row))


def test_it_does_so_one_step_after_another(alone, in_turn):
    check_equal(succeeded(in_turn, "Adam"), succeeded(alone, "Adam"))


def test_an_id_gets_a_row_after_some_lookups(sync):
    found = succeeded(sync, "admitted late")
    initial = found["initial"]
    sizes, (before, middle, after) = zip(*found["found"], strict=True)

    assert sizes == (0, 1, 2)
    np.testing.assert_array_equal(before, 0 * initial)
    # Its last gradient before was of the default row.
    np.testing.assert_array_equal(middle, initial * [[1], [0], [0]])
    np.testing.assert_allclose(after[0], initial[0] - RATE / 2)
    np.testing.assert_array_equal(after[1:], initial[1:] * [[1], [0]])


def test_rows_that_no_update_has_are_given_to_others(sync):
    found = succeeded(sync, "expired")

    np.testing.assert_array_equal(found["ids"], found["expected"])
    assert not found["forgotten"].any()
    # Without a momentum of the ids before.
    steps = found["steps of new rows"]
    np.testing.assert_allclose(steps, np.full_like(steps, -RATE / len(steps)))
