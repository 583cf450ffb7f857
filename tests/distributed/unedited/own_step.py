"""A subclassed model with a training step of its own; its parts are made before."""

import keras
import numpy as np
import tensorflow as tf

optimizer = keras.optimizers.AdamW(1e-2, weight_decay=1e-3, global_clipnorm=0.5)
tracker = keras.metrics.Mean(name="loss")
error = keras.metrics.MeanAbsoluteError(name="error")
first = keras.layers.Dense(16, activation="gelu")


class Regression(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = first
        self.last = keras.layers.Dense(1, kernel_regularizer="l2")

    def call(self, inputs, training=False):
        return self.last(self.first(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            loss = super().compute_loss(x=x, y=y, y_pred=prediction)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        tracker.update_state(loss)
        error.update_state(y, prediction)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        error.update_state(y, self(x, training=False))
        return {"error": error.result()}

    @property
    def metrics(self):
        return [tracker, error]


draw = np.random.default_rng(4)
x = draw.normal(size=(100, 8)).astype("float32")
y = x[:, :1] * x[:, 1:2]
model = Regression()
model.compile(optimizer=optimizer, loss=keras.losses.Huber())
model.fit(x, y, batch_size=16, epochs=2, verbose=2)
print(model.evaluate(x, y, verbose=0, return_dict=True))
