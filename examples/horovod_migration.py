"""A Horovod script from 2022 on Keras 3: what moves is one import.

    horovodrun -np 2 python examples/horovod_migration.py
    python examples/horovod_migration.py

It is the script of the notebook "Horovod" in the course "Distributed Deep Learning" of
OpenACC-Standard.org, in collaboration with NVIDIA Corporation, under the Creative Commons
Attribution 4.0 International licence (CC BY 4.0). Changed were the import of Horovod, and
the data: MNIST must be downloaded, so the digits of scikit-learn are the default, in smaller
batches. Everything else is as it was written.
"""
#Import Necessary libraries
import argparse
import tensorflow_datasets as tfds
import tensorflow as tf
from tensorflow import keras
import time
import os
import sys
from sklearn.datasets import load_digits
# Import Horovod
import tfdist.horovod as hvd

# MNIST must be downloaded; the digits of scikit-learn need no network.
parser = argparse.ArgumentParser()
parser.add_argument('--dataset', default='digits', choices=['digits', 'mnist'])
args = parser.parse_args()

# 1. Horovod: initialize Horovod.
hvd.init()

# 2. Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices('GPU')
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')


# Load dataset and batching.
if args.dataset == 'mnist':
    (mnist_images, mnist_labels), _ = tf.keras.datasets.mnist.load_data(path='mnist-%d.npz' % hvd.rank())
else:
    mnist_images, mnist_labels = load_digits().images * 255.0 / 16.0, load_digits().target

dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(mnist_images[..., tf.newaxis] / 255.0, tf.float32),
             tf.cast(mnist_labels, tf.int64))
)
BATCH_SIZE_PER_REPLCIA = 1024 if args.dataset == 'mnist' else 64
dataset = dataset.repeat().shuffle(10000).batch(BATCH_SIZE_PER_REPLCIA)

# Building the model
mnist_model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(32, [3, 3], activation='relu'),
    tf.keras.layers.Conv2D(64, [3, 3], activation='relu'),
    tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
    tf.keras.layers.Dropout(0.25),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(128, activation='relu'),
    tf.keras.layers.Dropout(0.5),
    tf.keras.layers.Dense(10, activation='softmax')
])

# Use Adam optimizer for training
opt = tf.optimizers.Adam()

# 3. Horovod: Wrap optimizer with DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

# Horovod: Specify `experimental_run_tf_function=False` to ensure TensorFlow
# uses hvd.DistributedOptimizer() to compute gradients.
mnist_model.compile(loss=tf.losses.SparseCategoricalCrossentropy(),
                    optimizer=opt,
                    metrics=['accuracy'],
                    experimental_run_tf_function=False)


class Throughput(tf.keras.callbacks.Callback):
    def __init__(self, total_images=0):
        self.total_images = total_images
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_start_time = time.time()
    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 0 :
            epoch_time = time.time() - self.epoch_start_time
            print('Epoch time : {}'.format(epoch_time))
            images_per_sec = round(self.total_images / epoch_time, 2)
            print('Images/sec: {}'.format(images_per_sec))

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch.
    hvd.callbacks.MetricAverageCallback(),
    # Callback to calculate Throughput
    Throughput(total_images=len(mnist_labels))
]


# Horovod: write logs on worker 0.
verbose = 1 if hvd.rank() == 0 else 0

# Train the model.
# Horovod: adjust number of steps based on number of GPUs.
mnist_model.fit(dataset, steps_per_epoch=len(mnist_labels) // (BATCH_SIZE_PER_REPLCIA*hvd.size()), callbacks=callbacks, epochs=8, verbose=verbose)
