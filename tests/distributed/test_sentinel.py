"""Planted faults that Sentinel finds in real processes, in two fits each."""

import contextlib
import io
from functools import partial

import keras
import numpy as np
import pytest

import tfdist
from tfdist.callbacks import Sentinel

SECONDS = 1200
BATCH, STEPS, EPOCHS = 6, 8, 2
FAULTY_STEP = 4
# Three ranks can tell which of them is wrong.
PLACES = [
    pytest.param((3, "tensorflow", {}), id="tensorflow"),
    pytest.param(
        (2, "mpi", {"shard_optimizer": True}), id="mpi", marks=pytest.mark.slow
    ),
]


class FlipsOneBit(keras.callbacks.Callback):
    """Changes the last bit of a bias in one step of each first epoch, on one rank."""

    def __init__(self, rank):
        super().__init__()
        self._rank = rank

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        is_here = tfdist.rank() == self._rank
        if is_here and (self._epoch, batch + 1) == (0, FAULTY_STEP):
            value = self.model.layers[2].bias.numpy()
            value.view("uint32")[-1] ^= 1
            self.model.layers[2].bias.assign(value)


def rows():
    """Return the rows of an epoch."""
    return np.random.default_rng(1).normal(size=(STEPS * BATCH, 8)).astype("float32")


def train(strategy, *callbacks, is_frozen=False, **options):
    """Return what two fits leave: weights, lines of Sentinel, and the first error."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, activation="relu"),
                layers.Dropout(0.2),
                layers.Dense(4),
                # Its statistics differ between ranks within an epoch.
                layers.BatchNormalization(),
                layers.Dense(1),
            ]
        )
        model.layers[2].trainable = not is_frozen
        model.compile(keras.optimizers.Adam(**options), "mse", jit_compile=False)
    fit = {"batch_size": BATCH, "shuffle": False, "epochs": EPOCHS, "verbose": 0}
    error, x = "", rows()
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        for _ in range(2):
            try:
                model.fit(x, x[:, :1], callbacks=[*callbacks], **fit)
            except RuntimeError as raised:
                error = error or str(raised)
    weights = [weight.tobytes().hex() for weight in model.get_weights()]
    lines = printed.getvalue().splitlines()
    return weights, [line for line in lines if "Sentinel" in line], error


def train_cases(options, names):
    """Train with the faults of some names; return what is left by name."""
    strategy = tfdist.strategies.AllReduceStrategy(
        timeout_seconds=300, check_first_step="off", **options
    )
    last = tfdist.size() - 1

    def case(*faults, accumulate=None, is_frozen=False, **options):
        sentinel = Sentinel(every_steps=2, **options)
        more = {"gradient_accumulation_steps": accumulate}
        more["is_frozen"] = is_frozen
        return train(strategy, *faults, sentinel, **more)

    cases = {
        "right": case,
        "accumulated": partial(case, accumulate=3),
        "repaired": partial(case, FlipsOneBit(last), on_difference="repair"),
        "stopped": partial(case, FlipsOneBit(0), is_frozen=True),
        "warned": partial(case, FlipsOneBit(0), on_difference="warn"),
    }
    return {name: cases[name]() for name in cases if name in names}


@pytest.fixture(scope="module", params=PLACES)
def job(request, asked):
    """Return the number of processes, and by case what each rank ended with."""
    size, collective, options = request.param
    values = tfdist.testing.cluster(
        train_cases,
        size=size,
        args=(options, {"right", "repaired", "stopped", *asked}),
        collective=collective,
        timeout_seconds=SECONDS,
    ).values
    return size, {name: [value[name] for value in values] for name in values[0]}


def wrong_rank(size):
    """Return which rank is named where rank 0 differs: two ranks cannot tell."""
    return 0 if size > 2 else 1


@pytest.mark.parametrize(
    "name", ["right", pytest.param("accumulated", marks=pytest.mark.slow)]
)
def test_variables_that_may_differ_are_not_compared(job, name):
    size, found = job
    (weights, *others), *_ = found[name]

    assert found[name] == [(weights, [], "")] * size
    assert others == [[], ""]


def test_one_bit_is_found_and_repaired(job):
    size, found = job
    (weights, *_), *_ = found["right"]
    where = "sequential/dense_1/bias of rank"
    # The second fit counts anew.
    line = (
        f"tfdist: Sentinel: after step {FAULTY_STEP} there are other bits in {where} "
        f"{size - 1}: all have those of rank 0 now."
    )

    assert found["repaired"] == [
        (weights, [line] * 2 if rank == 0 else [], "") for rank in range(size)
    ]
    for _, printed, error in found["stopped"]:
        assert printed == []
        assert error == (
            f"The ranks have different variables after step {FAULTY_STEP}. Received: "
            f"other bits in {where} {wrong_rank(size)}. Change variables on all ranks "
            "alike, and test the memory of that host; on_difference='repair' gives all "
            "ranks those of rank 0."
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warned"])
def test_a_rank_that_differs_from_most_is_named(job, name):
    size, found = job
    (_, printed, error), *others = found[name]

    # It stays different, and is named once in each fit.
    wrong = wrong_rank(size)
    start = "tfdist: Sentinel: after step 4 there are other bits in sequential/"
    assert error == ""
    assert printed[0] == f"{start}dense_1/bias of rank {wrong}."
    assert all(f"of rank {wrong}" in line for line in printed)
    assert {text for _, lines, text in others for text in [*lines, text]} == {""}
