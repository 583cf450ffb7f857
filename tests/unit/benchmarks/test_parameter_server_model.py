"""The models and the data of the parameter-server benchmark."""

import keras
import numpy as np

from tfdist.benchmarks.parameter_server_model import (
    build_dense,
    make_dense_dataset,
    make_embedding_dataset,
)
from tfdist.benchmarks.run_servers import TOUCHED_BYTES


def test_the_dense_model_learns_from_its_data():
    model = build_dense(keras, steps_per_execution=2)

    history = model.fit(make_dense_dataset(8), steps_per_epoch=2, verbose=0)

    assert model.count_params() == 235_146
    assert history.history["loss"][0] > 0


def test_a_batch_touches_each_row_of_the_table_once():
    indices, targets = next(iter(make_embedding_dataset(64)))

    assert targets.shape == (64, 1)
    assert len(np.unique(indices)) == 4096
    assert TOUCHED_BYTES == 4096 * 64 * 4
