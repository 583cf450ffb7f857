"""The state of a training is read as it was written."""

import random

import numpy as np
import pytest

from tfdist.callbacks.run_state import Saved
from tfdist.callbacks.state_files import Damaged
from tfdist.callbacks.training_state import TrainingState, pack, pack_rank, unpack

SPECS = [["dense/kernel", [2], "float32", "equal"], ["count", [], "int32", "summed"]]
FACTS = {"epoch": 3, "logs": {"loss": 0.5}, "variables": SPECS, "nothing": None}


def packed(facts=FACTS, ranks=2):
    """Return the bytes of a state of several ranks."""
    own = [
        pack_rank({"now": [rank, None]}, {"1": np.array(rank, "int32")})
        for rank in range(ranks)
    ]
    equal = {"0": np.array([1.5, -2.0], "float32")}
    return pack(facts, equal, {"the weights 0": np.arange(3)}, own)


def test_all_of_it_is_there():
    state = unpack(packed())

    assert state.facts == FACTS
    assert state.variables.specs == SPECS
    assert {name: value.tolist() for name, value in state.variables.equal.items()} == {
        "0": [1.5, -2.0]
    }
    assert [
        {name: value.tolist() for name, value in own.items()}
        for own in state.variables.by_rank
    ] == [{"1": 0}, {"1": 1}]
    assert {name: value.tolist() for name, value in state.remembered.items()} == {
        "the weights 0": [0, 1, 2]
    }
    assert state.randoms == [{"now": [0, None]}, {"now": [1, None]}]


def test_more_ranks_than_digits_stay_in_their_order():
    state = unpack(packed(ranks=12))

    assert [random["now"][0] for random in state.randoms] == [*range(12)]
    assert [int(own["1"]) for own in state.variables.by_rank] == [*range(12)]


def test_names_may_look_like_others():
    """What callbacks remember is named by them."""
    arrays = {name: np.array(3) for name in ("facts", "rank 0", "variable 0", "0")}
    own = pack_rank({}, {"0": np.array(1)})
    state = unpack(pack({"variables": []}, {"0": np.array(2)}, arrays, [own]))

    assert {name: int(value) for name, value in state.remembered.items()} == {
        name: 3 for name in arrays
    }
    assert int(state.variables.equal["0"]) == 2
    assert int(state.variables.by_rank[0]["0"]) == 1


def test_what_is_no_number_is_kept():
    logs = {"loss": float("nan"), "max": float("inf"), "min": -float("inf")}
    read = unpack(packed({**FACTS, "logs": logs})).facts["logs"]

    assert repr(read) == repr(logs)


def test_numbers_are_kept_to_the_bit():
    draw = random.Random(4)
    values = [draw.random() * 10 ** draw.randint(-300, 300) for _ in range(100)]
    state = unpack(packed({**FACTS, "values": [*values, 2**64 - 1]}))

    assert state.facts["values"] == [*values, 2**64 - 1]


def test_a_rank_that_was_not_there_has_the_seeds_of_another():
    state = TrainingState({}, Saved([], {}, []), {}, ["of 0", "of 1"])

    assert [state.random_of(rank) for rank in range(5)] == [
        *("of 0", "of 1", "of 0", "of 1", "of 0")
    ]


def test_what_is_not_whole_is_refused():
    content = packed()
    for changed in (content[:-1], content[1:], b""):
        with pytest.raises(Damaged):
            unpack(changed)
