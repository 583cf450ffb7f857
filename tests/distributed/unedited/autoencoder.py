"""A variational autoencoder, with a layer that draws and a loss of its own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(inputs)
x = layers.Flatten()(x)
mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
code = Sampling()([mean, log_variance])
encoder = keras.Model(inputs, [mean, log_variance, code], name="encoder")

codes = keras.Input((2,))
x = layers.Dense(4 * 4 * 8, activation="relu")(codes)
x = layers.Reshape((4, 4, 8))(x)
x = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(x)
decoder = keras.Model(codes, x, name="decoder")


class Autoencoder(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total = keras.metrics.Mean(name="loss")
        self.divergence = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        return [self.total, self.divergence]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, code = self.encoder(data)
            decoded = self.decoder(code)
            errors = ops.sum(keras.losses.binary_crossentropy(data, decoded), (1, 2))
            terms = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
            divergence = ops.mean(ops.sum(-0.5 * terms, axis=1))
            loss = ops.mean(errors) + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.total.update_state(loss)
        self.divergence.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}


draw = np.random.default_rng(6)
images = np.zeros((96, 8, 8, 1), "float32")
for image, column in zip(images, draw.integers(0, 8, 96), strict=True):
    image[:, column] = 1.0
model = Autoencoder(encoder, decoder)
model.compile(optimizer=keras.optimizers.Adam())
model.fit(images, batch_size=24, epochs=3, verbose=2)
print(decoder.predict(np.zeros((1, 2)), verbose=0).shape)
