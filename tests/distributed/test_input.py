"""`tfdist.data` under `fit` with real processes: every example once, in every epoch."""

import numpy as np
import pytest
from test_strategy import Seen

import tfdist
from tfdist.testing import cluster

pytestmark = pytest.mark.slow

EXAMPLES = 1001
BATCH = 64


def parse(record):
    import tensorflow as tf

    row = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([1], "float")})
    return row["x"], row["x"]


def compiled(strategy):
    """Return a compiled model with a metric that counts how often it saw each row."""
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(1e-7)
        model.compile(optimizer=optimizer, loss="mse", metrics=[Seen(rows=EXAMPLES)])
    return model


def train(folder):
    """Train on each kind of input; how often rows were seen, and steps taken."""
    strategy = tfdist.strategies.AllReduceStrategy(timeout_seconds=300)
    if tfdist.is_chief():
        rows = ({"x": float(number)} for number in range(EXAMPLES))
        tfdist.data.write_tfrecords(rows, f"{folder}/few", 2)
    strategy.collective.barrier("the files")
    found = {}

    def fit(kind, dataset):
        model = compiled(strategy)
        logs = model.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history
        counts = [*logs["fewest"], *logs["most"]]
        counts += [*logs["val_fewest"], *logs["val_most"]]
        weights = [weight.tolist() for weight in model.get_weights()]
        found[kind] = counts, int(model.optimizer.iterations), weights

    few = f"{folder}/few-*"
    records = tfdist.data.tfrecord_dataset
    fit("files", records(few, parse, BATCH))
    shuffled = records(few, parse, BATCH, shuffle_buffer=100, cache=True)
    fit("shuffled and mapped", shuffled.map(lambda x, y: (2 * x, y)))
    # Last of all, as nothing can follow a failure.
    corrupt = records(f"{folder}/corrupt", parse, BATCH)
    try:
        compiled(strategy).fit(corrupt, verbose=0)
    except Exception as error:
        found["corrupt"] = str(error)
    return found


@pytest.fixture(scope="module")
def corrupt_file(tmp_path_factory):
    """A file whose record 80 is corrupt: of three ranks the last one reads it."""
    rows = ({"x": float(number)} for number in range(100))
    folder = tmp_path_factory.mktemp("data")
    [file] = tfdist.data.write_tfrecords(rows, folder / "rows")
    content = np.fromfile(file, np.uint8)
    # All records are as long as each other; before its checksum ends the data of one.
    content[81 * len(content) // 100 - 5] ^= 1
    content.tofile(folder / "corrupt")
    return folder / "corrupt"


@pytest.fixture(scope="module")
def fits(corrupt_file):
    folder = str(corrupt_file.parent)
    return cluster(train, size=3, args=(folder,), timeout_seconds=1200).values


@pytest.mark.parametrize("kind", ["files", "shuffled and mapped"])
def test_three_ranks_see_1001_examples_once_in_every_epoch(fits, kind):
    counts, _, weights = fits[0][kind]

    assert set(counts) == {1.0}
    assert all(rank[kind][0] == counts and rank[kind][2] == weights for rank in fits)


def test_there_are_as_many_steps_as_on_one_process(fits):
    for kind in ("files", "shuffled and mapped"):
        # 15 batches of 64, and one of 41.
        assert fits[0][kind][1] == 2 * 16


def test_corrupt_data_ends_the_training_and_is_named(fits, corrupt_file):
    assert f"Received:] [{corrupt_file}] [Write or copy" in fits[2]["corrupt"]
    assert all("corrupt" in rank for rank in fits)
