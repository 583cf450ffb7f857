"""The equality matrix: data of Grain and of PyTorch, and tasks of KerasHub."""

from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from equality_matrix import everywhere
from equality_models import BATCH, data, fitting, state
from equality_rows import Absent

CLASSES = 3


def needing(package, row):
    """Return a row that is skipped where a package of `tfdist[others]` is missing."""

    def checked(strategy):
        if find_spec(package) is None:
            raise Absent(f"{package} is not installed")
        return row(strategy)

    return checked


def pairs(x, y):
    return [*zip(x, y, strict=True)]


def grain_dataset(x, y):
    import grain

    return {"x": grain.MapDataset.source(pairs(x, y)).shuffle(seed=4).batch(BATCH)}


def grain_iterator(x, y):
    """Batches of rows that are drawn at random and filtered, of unknown length."""
    import grain

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element, rng):
            return element[0] + rng.normal(size=8), element[1]

    rows = grain.MapDataset.source(pairs(x, y)).seed(5).shuffle().random_map(Noise())
    some = rows.to_iter_dataset().filter(lambda row: row[0][2] < 1.0)
    return {"x": some.batch(BATCH)}


def grain_loader(x, y):
    import grain

    sampler = grain.samplers.IndexSampler(len(x), num_epochs=1, shuffle=True, seed=1)
    return {
        "x": grain.DataLoader(
            data_source=pairs(x, y),
            sampler=sampler,
            operations=[grain.transforms.Batch(BATCH)],
            worker_count=0,
        )
    }


def torch_loader(x, y):
    import torch

    rows = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    order = torch.Generator().manual_seed(5)
    return {
        "x": torch.utils.data.DataLoader(
            rows, batch_size=BATCH, shuffle=True, generator=order
        )
    }


def texts(strategy, *, lora):
    """Classify sequences of tokens with all weights, or with LoRA."""
    import keras_hub

    with strategy.scope():
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=9,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=12,
            max_sequence_length=8,
            dropout=0.0,
        )
        if lora:
            backbone.enable_lora(2)
        model = keras_hub.models.BertTextClassifier(
            backbone, num_classes=CLASSES, preprocessor=None, dropout=0.0
        )
    x, y = data()
    tokens = np.digitize(x, [-1.0, -0.5, 0.0, 0.5, 1.0])
    zeros, ones = np.zeros_like(tokens), np.ones_like(tokens)
    given = {"token_ids": tokens, "segment_ids": zeros, "padding_mask": ones}
    return trained(strategy, model, given, y)


def trained(strategy, model, x, y):
    """Train and apply a task."""
    import keras

    with strategy.scope():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        sgd = keras.optimizers.SGD(0.05)
        model.compile(sgd, loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    found = state(model, history)
    return {**found, "predict": model.predict(x, batch_size=BATCH, verbose=0)}


ROWS = {
    "grain.MapDataset": needing("grain", fitting(feed=grain_dataset)),
    "grain.IterDataset": needing("grain", fitting(feed=grain_iterator)),
    "grain.DataLoader": needing("grain", fitting(feed=grain_loader)),
    "torch DataLoader": needing("torch", fitting(feed=torch_loader)),
    "KerasHub, texts": needing("keras_hub", partial(texts, lora=False)),
    "KerasHub, LoRA": needing("keras_hub", partial(texts, lora=True)),
}


@pytest.mark.parametrize(("row", "column"), everywhere(ROWS, variants=ROWS))
def test_n_processes_end_as_one(cells, column, row):
    cells.check(row, column)
