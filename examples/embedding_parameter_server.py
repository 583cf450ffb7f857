"""Train a recommender whose embeddings lie on several parameter servers.

    tfdist run --workers 2 --ps 2 examples/embedding_parameter_server.py

Two towers, one for users and one for movies, say what rating a user gives a movie. The
ratings are made here, in the shape of those of MovieLens: a million users and 20,000
movies, a few of which have most of the ratings. `--dataset=movielens` downloads real
ones. Each large table is cut into shards, and of these only the rows that a batch looks
up travel to a worker, and their gradients back.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import tfdist

USERS = flags.DEFINE_integer("users", 1_000_000, "users of the ratings made here")
MOVIES = flags.DEFINE_integer("movies", 20_000, "movies of the ratings made here")
RATINGS = flags.DEFINE_integer("ratings", 1_000_000, "ratings made here")
FACTORS = flags.DEFINE_integer("factors", 16, "numbers for each user and movie")
EPOCHS = flags.DEFINE_integer("epochs", 3, "passes over the training data")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 4096, "ratings in one step")
LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.1, "of Adagrad")
SHARDS = flags.DEFINE_integer("shards", 2, "most shards that a table is cut into")
MIN_SHARD_BYTES = flags.DEFINE_integer("min_shard_bytes", 1 << 20, "of each shard")
DATASET = flags.DEFINE_enum("dataset", "made", ["made", "movielens"], "what to learn")


def make_ratings(users, movies, ratings):
    """Return the user, the movie and the rating, 0.5 to 5, of each of many ratings."""
    random = np.random.default_rng(1)
    taste = random.normal(size=(users, 3)), random.normal(size=(movies, 3))
    liked = random.normal(size=users), random.normal(size=movies)
    # Some watch far more than others, and some are watched far more.
    user = random.permutation(users)[(users * random.random(ratings) ** 3).astype(int)]
    movie = (movies * random.random(ratings) ** 2).astype(int)
    score = 3.5 + 0.4 * liked[0][user] + 0.5 * liked[1][movie]
    score += 0.4 * (taste[0][user] * taste[1][movie]).sum(1)
    score += 0.3 * random.normal(size=ratings)
    return user, movie, np.clip(np.round(2.0 * score) / 2.0, 0.5, 5.0)


def load_ratings():
    """Return the same of the million real ratings of MovieLens, which is downloaded."""
    import tensorflow_datasets as tfds

    data = tfds.load("movielens/1m-ratings", split="train", batch_size=-1)
    rows = tfds.as_numpy(data)
    numbers = rows["user_id"].astype(int), rows["movie_id"].astype(int)
    order = np.random.default_rng(1).permutation(len(numbers[0]))
    return *(column[order] for column in numbers), rows["user_rating"][order]


def build_model(users, movies, factors, mean):
    inputs = [keras.Input((), dtype="int64", name=name) for name in ("user", "movie")]
    towers, liked = [], []
    for who, rows in zip(inputs, (users, movies), strict=True):
        towers.append(keras.layers.Embedding(rows, factors, name=f"{who.name}s")(who))
        likes = keras.layers.Embedding(rows, 1, "zeros", name=f"likes_of_{who.name}s")
        liked.append(likes(who))
    agreement = keras.layers.Dot(axes=1)(towers)
    score = keras.layers.Add()([agreement, *liked])
    return keras.Model(inputs, keras.layers.Rescaling(1.0, offset=mean)(score))


def main(_):
    # Else TensorFlow Datasets tells each step of its work.
    logging.set_verbosity(logging.ERROR)

    # (1) Workers and servers stay in here until the job ends; the chief goes on.
    strategy = tfdist.strategies.ParameterServerStrategy(
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            MIN_SHARD_BYTES.value, max_shards=SHARDS.value
        )
    )

    if DATASET.value == "made":
        user, movie, rating = make_ratings(USERS.value, MOVIES.value, RATINGS.value)
    else:
        user, movie, rating = load_ratings()
    tested = len(user) // 10
    train = [user[tested:], movie[tested:]], rating[tested:]
    test = [user[:tested], movie[:tested]], rating[:tested]
    mean = float(rating[tested:].mean())

    # (2) The tables that are made under the strategy are cut, and on the servers.
    keras.utils.set_random_seed(1)
    with strategy.scope():
        users, movies = int(user.max()) + 1, int(movie.max()) + 1
        model = build_model(users, movies, FACTORS.value, mean)
        model.compile(
            keras.optimizers.Adagrad(LEARNING_RATE.value),
            loss="mse",
            metrics=[keras.metrics.RootMeanSquaredError(name="error")],
        )

    # (3) Everything else is Keras as always.
    model.fit(*train, epochs=EPOCHS.value, batch_size=BATCH_SIZE.value)
    _, error = model.evaluate(*test, batch_size=BATCH_SIZE.value)

    guess = np.sqrt(np.mean((rating[:tested] - mean) ** 2))
    print(f"error of the mean rating: {guess:.4f}")
    print(f"test error: {error:.4f}")
    print(strategy.placement)


if __name__ == "__main__":
    app.run(main)
