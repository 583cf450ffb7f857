"""What `HorovodStrategy` refuses, and how it hands its options on; see also
`tests/distributed/test_horovod_strategy.py`."""

import re

import keras
import numpy as np
import pytest

from tfdist.collectives import FusingCollective, SingleCollective
from tfdist.gradients import GradientReducer, HorovodReducer
from tfdist.strategies import AllReduceStrategy, HorovodStrategy, allreduce, horovod


class Fusing(SingleCollective, FusingCollective):
    """Horovod's, of one process."""

    def check_op(self, op):
        if op == "adasum":
            raise ValueError("no adasum here")

    def all_reduce_as(self, tensors, op, *, name, factors=(1.0, 1.0)):
        return list(tensors)


@pytest.fixture
def connected(monkeypatch):
    """What the strategies ask for instead of a job; they get what a test says."""

    class Connected(list):
        collective = Fusing()

    asked = Connected()

    def connect(*args, **timeouts):
        asked.append((args, timeouts))
        return asked.collective

    monkeypatch.setattr(horovod, "connect_horovod", connect)
    monkeypatch.setattr(allreduce, "connect", connect)
    return asked


def reducer_of(strategy):
    return strategy.extended.keras_hooks._reducer


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"compression": "fp8"},
            ValueError,
            "compression must be one of none, fp16, bf16. Received: compression='fp8'.",
        ),
        (
            {"compression": "bf16"},
            ValueError,
            "Horovod does not move bfloat16. Received: compression='bf16'.",
        ),
        (
            {"op": "max"},
            ValueError,
            "op must be one of average, sum, adasum. Received: op='max'.",
        ),
        (
            {"gradient_predivide_factor": 0},
            ValueError,
            "gradient_predivide_factor must be positive and finite. Received: "
            "gradient_predivide_factor=0.",
        ),
        (
            {"gradient_predivide_factor": 2.0, "op": "adasum"},
            ValueError,
            "gradient_predivide_factor goes with op='average' only. Received: "
            "gradient_predivide_factor=2.0 and op='adasum'.",
        ),
        (
            {"op": "adasum", "num_groups": 2},
            ValueError,
            "groups do not go with op='adasum', which combines each gradient by "
            "itself. Received: groups=2.",
        ),
        (
            {"num_groups": 2, "groups": 3},
            ValueError,
            "num_groups and groups are two names of one option. Received: num_groups=2 "
            "and groups=3. Leave num_groups out.",
        ),
        (
            {"num_groups": -1},
            ValueError,
            "num_groups must not be negative. Received: num_groups=-1. Use groups=..., "
            "or 0 to let Horovod join what is there at the same time.",
        ),
        (
            {"start_timeout_seconds": 0},
            ValueError,
            "start_timeout_seconds must be positive and finite. Received: "
            "start_timeout_seconds=0.",
        ),
        (
            {"timeout_seconds": float("nan")},
            ValueError,
            "timeout_seconds must be positive and finite. Received: "
            "timeout_seconds=nan.",
        ),
    ],
)
def test_wrong_options_are_refused_before_anybody_is_waited_for(
    options, error, text, connected
):
    with pytest.raises(error, match=re.escape(text)):
        HorovodStrategy(**options)
    assert connected == []


def test_what_horovod_cannot_do_here_is_refused(connected):
    with pytest.raises(ValueError, match="no adasum here"):
        HorovodStrategy(op="adasum")


def test_options_are_by_keyword_only():
    with pytest.raises(TypeError):
        HorovodStrategy("fp16")


def test_it_waits_for_whom_and_as_long_as_it_is_told(connected):
    HorovodStrategy(process_set="a set", start_timeout_seconds=5, timeout_seconds=7)

    times = {"start_timeout_seconds": 5, "timeout_seconds": 7}
    assert connected == [(("a set",), times)]


def test_its_gradients_go_by_horovod(connected):
    strategy = HorovodStrategy(groups=2)

    assert strategy.collective is connected.collective
    assert isinstance(strategy, AllReduceStrategy)
    assert isinstance(reducer_of(strategy), HorovodReducer)


def test_all_reduce_on_horovod_is_the_same(connected):
    strategy = AllReduceStrategy("horovod", sparse_as_dense=True, compression="fp16")

    assert connected[0][0] == ("horovod",)
    assert isinstance(reducer_of(strategy), HorovodReducer)


@pytest.mark.parametrize("bucket_bytes", [0, 1024])
def test_buckets_are_not_for_horovod(bucket_bytes, connected):
    text = (
        "bucket_bytes is not for Horovod, which joins the gradients that are there at "
        f"the same time. Received: bucket_bytes={bucket_bytes}. Use `tfdist run "
        "--fusion-threshold-mb`, or HorovodStrategy(groups=...)."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        AllReduceStrategy("horovod", bucket_bytes=bucket_bytes)


def test_all_reduce_on_horovod_refuses_what_horovod_does_not_move(connected):
    with pytest.raises(ValueError, match=r"Horovod does not move bfloat16"):
        AllReduceStrategy("horovod", compression="bf16")


@pytest.mark.parametrize(
    "options", [{}, {"op": "sum"}, {"op": "adasum"}, {"groups": [["not/there"]]}]
)
def test_alone_it_trains_as_keras_does(options, connected):
    connected.collective = SingleCollective()
    strategy = HorovodStrategy(**options)
    assert type(reducer_of(strategy)) is GradientReducer

    def trained():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    x = np.arange(20.0).reshape(10, 2)
    plain = trained()
    plain.fit(x, x[:, :1], batch_size=4, verbose=0, shuffle=False)
    with strategy.scope():
        model = trained()
    model.fit(x, x[:, :1], batch_size=4, verbose=0, shuffle=False)

    for mine, its in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
