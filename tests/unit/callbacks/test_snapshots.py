"""Snapshots of a training are taken, read and restored on all ranks."""

import random
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from tfdist.callbacks.backup import snapshots
from tfdist.callbacks.backup import state as state_module
from tfdist.callbacks.backup.files import StateFiles
from tfdist.callbacks.backup.snapshots import Snapshot, broadcast_bytes, gather_bytes
from tfdist.callbacks.backup.state import random_states
from tfdist.collectives.single import SingleCollective

FACTS = {"epoch": 2, "step": 3, "num_batches": 8}


ALONE = SingleCollective()


def trained():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((4, 1), "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    return model


@pytest.fixture(scope="module")
def models():
    """The models of two ranks, with equal weights."""
    models = [trained() for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    return models


@pytest.fixture
def files(tmp_path):
    return StateFiles(tmp_path / "states", kept=2)


def taken(model, collective=ALONE, others=(), **facts):
    began = {"seed": 5 + collective.rank, **random_states()}
    return snapshots.take(model, collective, others, {**FACTS, **facts}, began)


def test_what_was_taken_is_given_back(models):
    model = models[0]
    counting = SimpleNamespace(state=[1, 2])
    counting.get_state = lambda: counting.state
    counting.set_state = lambda state: setattr(counting, "state", state)
    weights = [weight.copy() for weight in model.get_weights()]
    loss = float(model.metrics[0].total.numpy())
    state = Snapshot.from_bytes(taken(model, others=[counting])())
    right = random.random()
    model.set_weights([np.zeros_like(weight) for weight in weights])
    model.metrics[0].total.assign(0.0)
    counting.state = None

    state.check(model, 8, "/backup")
    state.restore(model, ALONE, [counting])
    assert counting.state == [1, 2]
    assert float(model.metrics[0].total.numpy()) == 0.0
    for weight, wanted in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(weight, wanted)

    state.restore_counts(model, ALONE)
    assert float(model.metrics[0].total.numpy()) == loss
    assert random.random() == right


def test_with_virtual_ranks_all_ranks_hold_all_sums(models, monkeypatch):
    arithmetic = "virtual_ranks=2 and 1 intra-op thread"
    for module in (snapshots, state_module):
        monkeypatch.setattr(module, "arithmetic_of", lambda model: arithmetic)
    state = Snapshot.from_bytes(taken(models[0])())

    assert state.facts["arithmetic"] == arithmetic
    assert {kind for *_, kind in state.variables.specs} == {"equal"}


def test_the_chief_alone_reads(models, files, on_ranks, tmp_path):
    stray = tmp_path / "states" / ".1.state-00000002.npys"
    files.write(taken(models[0])())
    stray.write_bytes(b"half")
    missing = StateFiles(tmp_path / "no folder of this host", kept=2)

    def read(collective):
        mine = files if collective.rank == 0 else missing
        return snapshots.read_newest(mine, collective)

    states = on_ranks(3, read)
    assert [state.facts["epoch"] for state in states] == [2] * 3
    assert not stray.exists()


def test_every_rank_hears_what_the_chief_could_not_read(files, on_ranks, tmp_path):
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "state-00000001.npys").write_bytes(b"half")
    heard = []

    def read(collective):
        with pytest.raises(OSError, match=r"^backup_dir has no state that could be "):
            snapshots.read_newest(files, collective)
        heard.append(collective.rank)

    on_ranks(2, read)

    assert sorted(heard) == [0, 1]


FORM = snapshots.FORM


@pytest.mark.parametrize(
    ("facts", "steps", "message"),
    [
        (
            {"arithmetic": "virtual_ranks=8 and 1 intra-op thread"},
            8,
            r"whose bits come from another arithmetic\. Received: /backup with "
            r"virtual_ranks=8 and 1 intra-op thread, where this strategy has no "
            r"virtual_ranks\. Make the strategy that was trained with, or ",
        ),
        (
            {"form": FORM - 1},
            8,
            r"that another version of tfdist has written\. Received: /backup with "
            rf"states of form {FORM - 1}, not {FORM}\. Continue with that version, or ",
        ),
        (
            {},
            9,
            r"from within an epoch of other data\. Received: /backup after step 3 of "
            r"8, where an epoch now has 9 steps\. Give fit the data and the global "
            r"batch size of before, or ",
        ),
    ],
    ids=["arithmetic", "form", "length of an epoch"],
)
def test_a_state_of_another_training_is_refused(models, facts, steps, message):
    state = Snapshot.from_bytes(taken(models[0])())
    with pytest.raises(
        ValueError,
        match=rf"^backup_dir holds a state {message}remove the folder to train from "
        r"the beginning\.$",
    ):
        replace(state, facts={**state.facts, **facts}).check(
            models[0], steps, "/backup"
        )


def content_of(rank, length):
    return bytes((rank * 100 + place) % 251 for place in range(length))


@pytest.mark.parametrize(
    "lengths", [(3, 3), (0, 0), (0, 4, 1), (5, 0, 0), (700, 1, 300)]
)
def test_every_rank_gets_the_bytes_of_all(on_ranks, lengths):
    contents = [content_of(rank, length) for rank, length in enumerate(lengths)]

    def gather(collective):
        return gather_bytes(collective, contents[collective.rank], "names")

    assert on_ranks(len(lengths), gather) == [contents] * len(lengths)


PIECE = 8 * 2**20


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        *((b"\0", 1), (b"\0\xff\n", 1), (content_of(1, 300), 1)),
        *((b"ab" * (PIECE // 2), 1), (b"abc" * PIECE, 3), (b"abc" * PIECE + b"d", 4)),
    ],
    ids=["zero", "any byte", "long", "a piece", "pieces", "more than pieces"],
)
def test_every_rank_gets_the_bytes_of_the_first_in_pieces(on_ranks, content, pieces):
    def broadcast(collective):
        own = content if collective.rank == 0 else b"another's"
        got = broadcast_bytes(collective, own, "names")
        return got == content, collective.calls.count("broadcast names")

    assert on_ranks(3, broadcast) == [(True, pieces)] * 3


def test_more_ranks_than_digits_stay_in_order(models, on_ranks):
    def take(collective):
        began = {"seed": collective.rank, **random_states()}
        return snapshots.take(models[0], collective, [], {**FACTS, "step": 0}, began)

    state = Snapshot.from_bytes(on_ranks(12, take)[0]())

    assert [state.random_of(rank)["began"]["seed"] for rank in range(14)] == [
        *(*range(12), 0, 1)
    ]
