"""A forecast of a time series, from a PyDataset, several steps in an execution."""

import math

import keras
import numpy as np
from keras import layers

series = np.sin(np.arange(260) / 5).astype("float32")


class Windows(keras.utils.PyDataset):
    def __init__(self, series, length, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.series, self.length, self.batch_size = series, length, batch_size

    def __len__(self):
        return math.ceil((len(self.series) - self.length) / self.batch_size)

    def __getitem__(self, index):
        begin = index * self.batch_size
        end = min(begin + self.batch_size, len(self.series) - self.length)
        places = np.arange(begin, end)[:, None] + np.arange(self.length)
        return self.series[places][..., None], self.series[places[:, -1] + 1]


inputs = keras.Input((20, 1))
x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(inputs)
x = layers.LSTM(6)(layers.LayerNormalization()(x))
model = keras.Model(inputs, layers.Dense(1)(x))
schedule = keras.optimizers.schedules.CosineDecay(0.01, 20)
model.compile(
    keras.optimizers.Adam(schedule), "mse", metrics=["mae"], steps_per_execution=2
)
model.fit(
    Windows(series[:200], 20, 32),
    validation_data=Windows(series[200:], 20, 32),
    epochs=2,
    verbose=2,
)
print("next", model.predict(series[None, -20:, None], verbose=0).shape)
