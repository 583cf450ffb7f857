"""Programs in the shape of Horovod's own examples, on two ranks of its runner.

Each says what Horovod's example of that name says to Keras and to Horovod, with names
of Keras 2 where the example has them, on digits made up here. One job runs them all.
"""

import math
import os
import tempfile
import warnings

import keras
import numpy as np
import pytest
from horovod_jobs import run

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]


def digits(number=64):
    """Return images of two kinds of stripes with noise, and their kinds."""
    generator = np.random.default_rng(0)
    kinds = generator.integers(0, 2, number)
    stripes = np.stack([np.tile([0, 255], (8, 4)), np.tile([255, 0], (8, 4)).T])
    noise = generator.normal(0, 30, (number, 8, 8))
    images = np.clip(stripes[kinds] + noise, 0, 255).astype("uint8")
    return images[..., None], kinds.astype("uint8")


def batches_of(hvd, size=8):
    """Return endless batches of digits, as the examples of TensorFlow 2 make them."""
    import tensorflow as tf

    images, kinds = digits()
    rows = tf.cast(images / 255.0, tf.float32), tf.cast(kinds, tf.int64)
    rank_rows = tf.data.Dataset.from_tensor_slices(rows).shard(hvd.size(), hvd.rank())
    return rank_rows.repeat().shuffle(64, seed=hvd.rank()).batch(size)


def layers_of(**first):
    return [
        keras.layers.Conv2D(4, (3, 3), activation="relu", **first),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Dropout(0.25),
        keras.layers.Flatten(),
        keras.layers.Dense(2, activation="softmax"),
    ]


def arrays():
    """Return floats and one-hot labels, as the examples of Keras make them."""
    images, kinds = digits()
    return images.astype("float32") / 255, keras.utils.to_categorical(kinds, 2)


def compile_and_names(model, optimizer, **more):
    loss = keras.losses.categorical_crossentropy
    model.compile(loss=loss, optimizer=optimizer, metrics=["accuracy"], **more)


def keras_mnist(hvd):
    x, y = arrays()
    model = keras.models.Sequential()
    for layer in layers_of(input_shape=(8, 8, 1)):
        model.add(layer)
    optimizer = keras.optimizers.Adadelta(1.0 * hvd.size())
    compile_and_names(model, hvd.DistributedOptimizer(optimizer))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
    epochs = math.ceil(8.0 / hvd.size())
    history = model.fit(
        *(x, y),
        batch_size=8,
        callbacks=callbacks,
        epochs=epochs,
        verbose=0,
        validation_data=(x, y),
    )
    return model, history.history["loss"]


def keras_mnist_advanced(hvd):
    import tensorflow as tf

    x, y = arrays()
    model = keras.models.Sequential(layers_of(input_shape=(8, 8, 1)))
    rate = 4.0 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adadelta(lr=rate))
    compile_and_names(model, optimizer)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=rate, warmup_epochs=2, verbose=1
        ),
        keras.callbacks.ReduceLROnPlateau(patience=10, verbose=1),
    ]
    kind = tf.keras.preprocessing.image.ImageDataGenerator
    history = model.fit_generator(
        kind(width_shift_range=0.01).flow(x, y, batch_size=8),
        steps_per_epoch=8 // hvd.size(),
        callbacks=callbacks,
        epochs=4,
        verbose=0,
        validation_data=kind().flow(x, y, batch_size=8),
        validation_steps=3 * 8 // hvd.size(),
    )
    assert history.history["lr"][-1] == rate
    return model, history.history["loss"]


def keras_imagenet(hvd, resume_from_epoch=0, epochs=3):
    import tensorflow as tf

    x, y = arrays()
    resume_from_epoch = hvd.broadcast(
        resume_from_epoch if hvd.rank() == 0 else 0, 0, name="resume_from_epoch"
    )
    images = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)
    batches = images.flow(x, y, batch_size=8)
    rate = 0.05 * hvd.size()
    if resume_from_epoch > 0 and hvd.rank() == 0:
        path = f"./checkpoint-{resume_from_epoch}.h5"
        model = hvd.load_model(path, compression=hvd.Compression.fp16)
    else:
        model = keras.Sequential([keras.Input((8, 8, 1)), *layers_of()])
        optimizer = keras.optimizers.SGD(lr=rate, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(
            optimizer, compression=hvd.Compression.fp16
        )
        compile_and_names(model, optimizer)

    def times(multiplier, **epochs):
        return hvd.callbacks.LearningRateScheduleCallback(
            initial_lr=rate, multiplier=multiplier, **epochs
        )

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1.0),
        times(1.0, start_epoch=1.0, end_epoch=2),
        times(0.5, start_epoch=2),
    ]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
    history = model.fit_generator(
        batches,
        steps_per_epoch=len(batches) // hvd.size(),
        callbacks=callbacks,
        epochs=epochs,
        verbose=0,
        workers=4,
        initial_epoch=resume_from_epoch,
        validation_data=batches,
        validation_steps=1,
    )
    score = hvd.allreduce(model.evaluate_generator(batches, len(batches), workers=4))
    assert score.shape == (2,)
    return model, history.history["loss"]


def keras_imagenet_resumed(hvd):
    return keras_imagenet(hvd, resume_from_epoch=3, epochs=6)


def tensorflow2_keras_mnist(hvd):
    import tensorflow as tf

    model = tf.keras.Sequential(layers_of())
    rate = 0.01 * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        tf.optimizers.Adam(rate),
        backward_passes_per_step=1,
        average_aggregated_gradients=True,
    )
    model.compile(
        loss=tf.losses.SparseCategoricalCrossentropy(),
        optimizer=optimizer,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3),
    ]
    steps = 8 // hvd.size()
    history = model.fit(
        batches_of(hvd), steps_per_epoch=steps, callbacks=callbacks, epochs=4, verbose=0
    )
    return model, history.history["loss"]


def tensorflow2_mnist(hvd):
    import tensorflow as tf

    model = tf.keras.Sequential(layers_of())
    measure = tf.losses.SparseCategoricalCrossentropy()
    optimizer = tf.optimizers.Adam(0.01 * hvd.size())
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            loss = measure(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        return loss

    losses = []
    for batch, (images, labels) in enumerate(batches_of(hvd).take(40 // hvd.size())):
        loss = training_step(images, labels, batch == 0)
        losses.append(float(hvd.allreduce(loss, average=True, device_dense="/cpu:0")))
    if hvd.rank() == 0:
        checkpoint.save("./checkpoints")
    return model, losses


def tensorflow2_keras_mnist_elastic(hvd):
    import tensorflow as tf

    dataset, backend = batches_of(hvd), tf.keras.backend
    model = tf.keras.Sequential(layers_of())
    optimizer = hvd.DistributedOptimizer(tf.optimizers.Adam(0.01 * hvd.size()))
    model.compile(
        loss=tf.losses.SparseCategoricalCrossentropy(),
        optimizer=optimizer,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
    model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    def on_state_reset():
        backend.set_value(state.model.optimizer.lr, 0.01 * hvd.size())
        state.model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)

    state.register_reset_callbacks([on_state_reset])
    state.on_reset()
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]

    @hvd.elastic.run
    def train(state):
        return state.model.fit(
            dataset,
            steps_per_epoch=8 // hvd.size(),
            epochs=4 - state.epoch,
            callbacks=callbacks,
            verbose=0,
        )

    history = train(state).history
    assert (state.epoch, state.batch) == (4, 0)
    return model, hvd.allreduce(history["loss"]).numpy().tolist()


def tensorflow2_mnist_elastic(hvd):
    import tensorflow as tf

    model, dataset = tf.keras.Sequential(layers_of()), batches_of(hvd)
    measure = tf.losses.SparseCategoricalCrossentropy()
    optimizer = tf.optimizers.Adam(0.02)

    @tf.function
    def training_step(images, labels, allreduce=True):
        with tf.GradientTape() as tape:
            loss = measure(labels, model(images, training=True))
        if allreduce:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    for images, labels in dataset.take(1):
        training_step(images, labels, allreduce=False)
    losses = []

    @hvd.elastic.run
    def train(state):
        rest = dataset.skip(state.batch).take(40 // hvd.size())
        for images, labels in rest:
            state.batch += 1
            losses.append(float(hvd.allreduce(training_step(images, labels))))
            state.commit()

    def on_state_reset():
        optimizer.lr.assign(0.01 * hvd.size())

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    state.register_reset_callbacks([on_state_reset])
    state.on_reset()
    train(state)
    return model, losses


PROGRAMS = (
    keras_mnist,
    keras_mnist_advanced,
    keras_imagenet,
    keras_imagenet_resumed,
    tensorflow2_keras_mnist,
    tensorflow2_mnist,
    tensorflow2_keras_mnist_elastic,
    tensorflow2_mnist_elastic,
)


def run_programs():
    """Run all programs in this rank, each rank in a folder of its own."""
    # In the one line that all examples change.
    import tfdist.horovod as hvd

    hvd.init()
    found = {}
    os.chdir(tempfile.mkdtemp())
    for program in PROGRAMS:
        keras.utils.set_random_seed(hvd.rank() + 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model, losses = program(hvd)
        weights = [variable.numpy().tolist() for variable in model.trainable_variables]
        said = {str(one.message).partition(".")[0] for one in caught}
        old = sorted(text for text in said if text.startswith("Keras 3 has no"))
        found[program.__name__] = (weights, losses, old)
    return found


@pytest.fixture(scope="module")
def found():
    return run(run_programs, timeout_seconds=1200)


@pytest.mark.parametrize("program", [program.__name__ for program in PROGRAMS])
def test_two_ranks_train_one_model_with_one_import(found, program):
    (weights, losses, _), (others, *_) = (of_rank[program] for of_rank in found)

    assert weights == others
    middle = len(losses) // 2
    assert np.mean(losses[middle:]) < np.mean(losses[:middle])


# Program -> the names of Keras 2 in it, of which it is told.
OLD = {
    "keras_mnist_advanced": {"Adadelta(lr=", "model"},
    "keras_imagenet": {"SGD(lr=", "model"},
    "tensorflow2_keras_mnist": {"experimental_run_tf_function"},
    "tensorflow2_mnist": {"optimizer"},
    "tensorflow2_mnist_elastic": set(),
}


def test_names_of_keras_2_are_told_where_they_are_used(found):
    said = {
        program: {text.removeprefix("Keras 3 has no ") for text in found[0][program][2]}
        for program in OLD
    }

    assert said == OLD
