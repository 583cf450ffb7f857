"""Epochs go on in the midst of their data with the batches that would have followed."""

import random
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.keras.input import ShardIterator
from tfdist.compat.keras.install import install
from tfdist.compat.keras.positions import Position, Resumes, resumed_by
from tfdist.strategies.parameter_server.worker_input import WorkerInput

BATCHES, STEPS, EPOCHS = 5, 3, 3
X = np.arange(2.0 * BATCHES)


class Batches(keras.utils.PyDataset):
    """Batches that are shuffled by Keras, and perhaps by the user's own code."""

    def __init__(self, shuffles=False, **options):
        super().__init__(**options)
        self.order = np.arange(BATCHES)
        self.shuffles = shuffles

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return (np.full((2,), self.order[index]),)

    def on_epoch_end(self):
        if self.shuffles:
            np.random.shuffle(self.order)


def dataset():
    return tf.data.Dataset.from_tensor_slices(X).shuffle(30, seed=3).batch(2)


def uncounted():
    return dataset().filter(lambda _: True)


def generator():
    number = 0
    while True:
        yield (np.full((2,), number),)
        number += 1


KINDS = {
    "arrays": lambda: {"x": X, "batch_size": 2, "shuffle": True},
    "arrays, in parts": lambda: {**KINDS["arrays"](), "steps_per_epoch": STEPS},
    "endless dataset": lambda: {"x": dataset().repeat(), "steps_per_epoch": STEPS},
    "uncounted dataset": lambda: {"x": uncounted()},
    "cached dataset": lambda: {"x": dataset().cache().prefetch(1)},
    "uncounted, cached dataset": lambda: {"x": uncounted().cache()},
    "shuffled PyDataset": lambda: {"x": Batches(shuffles=True), "shuffle": True},
    # Batches are read ahead, so that the user's own shuffle would come at any time.
    "PyDataset, in parts": lambda: {
        "x": Batches(),
        "shuffle": True,
        "steps_per_epoch": STEPS,
    },
    "PyDataset with workers": lambda: {
        "x": Batches(workers=2, max_queue_size=3),
        "shuffle": True,
    },
    "generator": lambda: {"x": generator(), "steps_per_epoch": STEPS},
}
# What these find, the other arrays and datasets in parts find, too.
SLOW_KINDS = ("arrays, in parts", "PyDataset with workers")


def keeping(position):
    """Keep a position as during a `fit`."""

    class Keeps(Resumes):
        def resuming(self, model):
            return nullcontext(position)

    return resumed_by(Keeps(), SimpleNamespace())


@pytest.fixture
def made():
    """Return a function that makes an iterator as a `fit` does."""
    install(is_alone=True)
    states = random.getstate(), np.random.get_state()

    def made(kind, steps_per_execution=1, strategy=None):
        random.seed(5)
        np.random.seed(5)
        options = {**KINDS[kind](), "steps_per_execution": steps_per_execution}
        with keeping(Position(11)):
            strategy = strategy or tf.distribute.get_strategy()
            iterator = ShardIterator(strategy, **options)
        iterator.reset()
        return iterator

    # Data that runs out is what some kinds are about.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield made
    random.setstate(states[0])
    np.random.set_state(states[1])


def executions(iterator, steps_per_execution):
    """Return the batches of an epoch, as Keras's training function takes them."""
    seen = []
    with iterator.catch_stop_iteration():
        # Newer versions of Keras give the last step of an execution, too.
        for begin, *_, batches in iterator:
            end = begin + steps_per_execution - 1
            assert iterator.steps == end + 1
            taken = []
            for _ in range(steps_per_execution):
                batch = batches.get_next_as_optional()
                if not batch.has_value():
                    break
                (rows,) = tf.nest.flatten(batch.get_value())
                taken.append(np.asarray(rows).tolist())
            if not taken:
                raise StopIteration
            seen.append((begin, end, taken))
            yield seen[-1]


def all_of(iterator, steps_per_execution, epochs=EPOCHS):
    """Return the executions of all epochs, and how long each was said to be."""
    return [
        [
            (*execution, iterator.num_batches)
            for execution in executions(iterator, steps_per_execution)
        ]
        for _ in range(epochs)
    ]


def places(epochs):
    """Return where a state may be taken, and what the length is taken to be there."""
    found = []
    for number, executions in enumerate(epochs):
        for _, end, _, length in executions:
            if length is None or end + 1 < length:
                found.append((number, end + 1, length))
    return found


@pytest.mark.parametrize(
    ("kind", "steps_per_execution"),
    [
        *[
            pytest.param(kind, 1, marks=pytest.mark.slow if kind in SLOW_KINDS else ())
            for kind in KINDS
        ],
        ("uncounted dataset", 3),
    ],
)
def test_what_follows_is_what_would_have_followed(made, kind, steps_per_execution):
    iterator = made(kind, steps_per_execution)
    epochs, lengths = [], []
    for _ in range(EPOCHS):
        epochs += all_of(iterator, steps_per_execution, 1)
        lengths.append(iterator.num_batches)
    begins = [(number + 1, 0, length) for number, length in enumerate(lengths[:-1])]
    for number, steps, length in [*begins, *places(epochs)[2::8]]:
        iterator = made(kind, steps_per_execution)
        iterator.begin_at(number, steps, length)
        rest = all_of(iterator, steps_per_execution, EPOCHS - number)

        wanted = [[one[:3] for one in epoch] for epoch in epochs[number:]]
        wanted[0] = [one for one in wanted[0] if one[0] >= steps]
        assert [[one[:3] for one in epoch] for epoch in rest] == wanted


def test_the_same_seed_gives_the_same_arrays_in_another_process(made):
    tf.random.set_seed(1)
    try:
        seeded = [all_of(made("arrays"), 1) for _ in range(2)]
    finally:
        tf.random.set_seed(None)
    of_position = [all_of(made("arrays"), 1) for _ in range(2)]

    assert of_position[0] == of_position[1]
    assert of_position[0] != seeded[0]


def test_the_position_knows_what_reads_the_training_data(made):
    position = Position(1)
    with keeping(position):
        training, validation = [
            ShardIterator(tf.distribute.get_strategy(), x=X, batch_size=size)
            for size in (2, 4)
        ]

    assert position.reader is training
    assert position.reader.num_batches == BATCHES
    assert validation.num_batches == 3


def read_by_workers(**options):
    """Return an iterator over data that workers read for themselves."""
    data = WorkerInput(lambda _: dataset(), workers=2)
    iterator = ShardIterator.__new__(ShardIterator)
    iterator._distributed_dataset = data
    iterator.steps_per_epoch = options.get("steps_per_epoch")
    return iterator


@pytest.mark.parametrize(
    ("within_epochs", "steps_per_epoch", "received"),
    [(True, None, "in batches"), (False, 4, "'epoch'"), (True, 4, "in batches")],
)
def test_what_workers_read_cannot_be_read_past(
    within_epochs, steps_per_epoch, received
):
    iterator = read_by_workers(steps_per_epoch=steps_per_epoch)
    with pytest.raises(
        ValueError,
        match=r"^Data that workers read for themselves can be taken up again at the "
        r"beginning of a dataset only\. Received: BackupAndRestore with save_freq "
        rf"{received} and steps_per_epoch={steps_per_epoch}\. Use save_freq='epoch' "
        r"without steps_per_epoch, or let the chief read the data\.$",
    ):
        iterator.check_can_begin(within_epochs=within_epochs)


def test_whole_datasets_of_workers_can_be_taken_up_again(made):
    assert read_by_workers().check_can_begin(within_epochs=False) is None
    assert made("generator").check_can_begin(within_epochs=True) is None
