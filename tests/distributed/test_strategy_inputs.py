"""More inputs, of which ranks see each row once, and images without any seed."""

import keras
import pytest
from test_strategy import how_often, numbered

import tfdist

pytestmark = pytest.mark.slow


def each_row_once(strategy):
    """Train on kinds of input; how often rows were seen, by kind."""
    import tensorflow as tf

    _, rows = numbered(strategy)
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    batches = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(10)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 11

        def __getitem__(self, index):
            return rows[index * 10 : index * 10 + 10], rows[
                index * 10 : index * 10 + 10
            ]

    options = {"batch_size": 10, "shuffle": "batch"}
    return {
        "arrays, shuffled batches": how_often(strategy, rows, rows, **options),
        "dataset, DATA policy": how_often(strategy, batches.with_options(policy)),
        "PyDataset, workers, shuffled": how_often(strategy, Batches(workers=2)),
    }


def tutorial(strategy, folder):
    """Train on images in folders, without any seed; the rows that each rank read."""
    import tensorflow as tf

    if tfdist.is_chief():
        for label in ("cats", "dogs"):
            tf.io.gfile.makedirs(f"{folder}-images/{label}")
            for number in range(8):
                image = tf.fill([8, 8, 3], tf.cast(20 * number, tf.uint8))
                png = tf.io.encode_png(image)
                tf.io.write_file(f"{folder}-images/{label}/{number}.png", png)
    strategy.collective.barrier("the images")
    images = keras.utils.image_dataset_from_directory(
        f"{folder}-images", image_size=(8, 8), batch_size=4, verbose=False
    )
    augment = keras.Sequential(
        [keras.layers.RandomFlip(), keras.layers.RandomBrightness(0.2)]
    )
    images = images.map(
        lambda x, y: (augment(x, training=True), y), num_parallel_calls=4
    ).prefetch(2)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile("sgd", "binary_crossentropy")
    model.fit(images, epochs=2, verbose=0)
    return [float(tf.reduce_sum(x)) for x, _ in images]


def check_everything(folder):
    """Run both in this process."""
    strategy = tfdist.strategies.AllReduceStrategy(
        timeout_seconds=300, check_first_step="off"
    )
    return {
        "once": each_row_once(strategy),
        "tutorial": tutorial(strategy, folder),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of three processes, by rank."""
    folder = tmp_path_factory.mktemp("files")
    return tfdist.testing.cluster(
        check_everything, size=3, args=(str(folder),), timeout_seconds=1200
    ).values


def test_each_row_is_seen_exactly_once(ranks):
    for values in ranks:
        for kind, seen in values["once"].items():
            assert seen == [[1.0, 1.0], [1.0, 1.0]], kind


def test_keras_s_tutorial_on_images_needs_no_seed(ranks):
    sums = [values["tutorial"] for values in ranks]

    assert len(set(sums[0])) == 4
    assert all(found == sums[0] for found in sums)
