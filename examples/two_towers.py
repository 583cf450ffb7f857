"""Find what a user will click next, among items of which new ones come every day.

    tfdist run -np 2 examples/two_towers.py
    tfdist run --workers 2 --ps 1 examples/two_towers.py --table=dynamic

Two towers turn a user and an item into a vector each; the larger their product, the
likelier is a click. An item is a random 64-bit number, so no vocabulary can be made
before. The first way hashes the numbers into a table of fixed size, of which each
process has some rows. The second gives an item a row when it is first seen, and takes
the row back when the item is gone. The clicks are made here: a user prefers some
topics. Both towers are saved as models of plain Keras.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

import tfdist

TABLE = flags.DEFINE_enum("table", "hashed", ["hashed", "dynamic"], "rows of items")
DAYS = flags.DEFINE_integer("days", 6, "days of clicks")
CLICKS = flags.DEFINE_integer("clicks", 20_000, "clicks of a day")
BINS = flags.DEFINE_integer("bins", 4096, "rows of the hashed table")
SAVE_TO = flags.DEFINE_string("save_to", "two_towers", "folder of both towers")

USERS, NEW_ITEMS, TOPICS, WIDTH = 2000, 500, 10, 16
BATCH_SIZE, EPOCHS, OTHERS, FOUND = 500, 2, 4, 50


def make_days(days, clicks):
    """Yield the items of each day, and its clicks as users and items."""
    random = np.random.default_rng(1)
    taste = random.dirichlet(np.full(TOPICS, 0.1), USERS)
    items = np.array([], np.int64)
    for _ in range(days):
        # An item stays two days.
        new = random.integers(1 << 62, size=NEW_ITEMS)
        items = np.concatenate([items[-NEW_ITEMS:], new])
        users = random.integers(USERS, size=clicks)
        wanted = (taste[users].cumsum(1) > random.random((clicks, 1))).argmax(1)
        clicked = np.empty(clicks, np.int64)
        for topic in range(TOPICS):
            of_topic = wanted == topic
            choice = items[items % TOPICS == topic]
            clicked[of_topic] = random.choice(choice, of_topic.sum())
        yield items, users, clicked


def with_others(items, users, clicked, seed):
    """Return clicks beside items that the same users might not have clicked."""
    random = np.random.default_rng(seed)
    not_clicked = random.choice(items, OTHERS * len(users))
    x = np.tile(users, OTHERS + 1), np.concatenate([clicked, not_clicked])
    y = np.arange(len(x[0])) < len(users)
    order = random.permutation(len(y))
    return [column[order] for column in x], y[order].astype("float32")


def tower(*rows):
    """Return a model from ids to vectors."""
    inputs = keras.Input((), dtype="int64")
    layers = keras.layers
    return keras.Sequential([inputs, *rows, layers.Dense(WIDTH)])


def in_plain_keras(item_tower):
    """Return a tower with a row for each item that training has met."""
    dynamic, *rest = item_tower.layers
    vocabulary, rows = dynamic.export()
    plain = tower(keras.layers.IntegerLookup(vocabulary=vocabulary), rows)
    for mine, its in zip(plain.layers[2:], rest, strict=True):
        mine.set_weights(its.get_weights())
    return plain


def recall(user_tower, item_tower, items, users, clicked):
    """Return how many of the clicked items are among the best for their users."""
    of_users = user_tower.predict(users, batch_size=1000, verbose=0)
    of_items = item_tower.predict(items, batch_size=1000, verbose=0)
    best = np.argsort(-of_users @ of_items.T, 1)[:, :FOUND]
    return (items[best] == clicked[:, np.newaxis]).any(1).mean()


def main(_):
    # (1) With servers, all but the chief stay in here until the job ends.
    if TABLE.value == "hashed":
        bytes_of_table = 4 * BINS.value * WIDTH
        strategy = tfdist.strategies.AllReduceStrategy(shard_embeddings=bytes_of_table)
    else:
        strategy = tfdist.strategies.ParameterServerStrategy()

    # (2) The items' rows: of a table of fixed size, or one for each item.
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = keras.layers
        if TABLE.value == "hashed":
            bins = layers.Hashing(BINS.value)
            rows = [bins, layers.Embedding(BINS.value, WIDTH)]
        else:
            of_two_days = 2 * EPOCHS * (OTHERS + 1) * CLICKS.value // BATCH_SIZE
            rows = [tfdist.layers.DynamicEmbedding(WIDTH, expire_steps=of_two_days)]
        towers = tower(layers.Embedding(USERS, WIDTH)), tower(*rows)
        ids = [keras.Input((), dtype="int64", name=name) for name in ("user", "item")]
        vectors = [one(given) for one, given in zip(towers, ids, strict=True)]
        chance = layers.Activation("sigmoid")(layers.Dot(axes=1)(vectors))
        model = keras.Model(ids, chance)
        model.compile(tfdist.optimizers.LazyAdam(0.01), "binary_crossentropy")

    # (3) Everything else is Keras as always: of each day the last clicks are a test.
    for day, (items, users, clicked) in enumerate(make_days(DAYS.value, CLICKS.value)):
        tested = len(users) // 10
        x, y = with_others(items, users[tested:], clicked[tested:], seed=day)
        model.fit(x, y, BATCH_SIZE, EPOCHS, verbose=0)
        found = recall(*towers, items, users[:tested], clicked[:tested])
        if tfdist.is_chief():
            at_random = FOUND / len(items)
            print(f"day {day}: recall {found:.3f}, at random {at_random:.3f}")

    # (4) All ranks save together; rows of servers come into plain layers.
    user_tower, item_tower = towers
    if TABLE.value == "dynamic":
        print(f"{rows[0].size()} items have a row")
        item_tower = in_plain_keras(item_tower)
    if tfdist.is_chief():
        os.makedirs(SAVE_TO.value, exist_ok=True)
    user_tower.save(f"{SAVE_TO.value}/users.keras")
    item_tower.save(f"{SAVE_TO.value}/items.keras")


if __name__ == "__main__":
    app.run(main)
