"""What `HorovodStrategy` refuses, and how it hands its options on; see also
`tests/distributed/test_horovod_strategy.py`."""

import re

import pytest

from tfdist.collectives.base import FusingCollective
from tfdist.collectives.single import SingleCollective
from tfdist.gradients.horovod import HorovodReducer
from tfdist.gradients.reducer import GradientReducer
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
    ("options", "text"),
    [
        (
            {"op": "max"},
            "op must be one of average, sum, adasum. Received: op='max'.",
        ),
        (
            {"num_groups": 2, "groups": 3},
            "num_groups must not be negative, and is another name of groups. Received: "
            "num_groups=2 and groups=3. Give groups=... only",
        ),
        ({"num_groups": -1}, "Received: num_groups=-1 and groups=None."),
        (
            {"start_timeout_seconds": 0},
            "start_timeout_seconds must be positive and finite. Received: "
            "start_timeout_seconds=0.",
        ),
    ],
)
def test_wrong_options_are_refused_before_connecting(options, text, connected):
    with pytest.raises(ValueError, match=re.escape(text)):
        HorovodStrategy(**options)
    assert connected == []


def test_an_operation_that_horovod_lacks_is_refused(connected):
    with pytest.raises(ValueError, match="no adasum here"):
        HorovodStrategy(op="adasum")


def test_the_process_set_and_timeouts_reach_horovod(connected):
    HorovodStrategy(process_set="a set", start_timeout_seconds=5, timeout_seconds=7)

    times = {"start_timeout_seconds": 5, "timeout_seconds": 7}
    assert connected == [(("a set",), times)]


def test_all_reduce_on_horovod_is_the_same(connected):
    strategy = AllReduceStrategy("horovod", sparse_as_dense=True, compression="fp16")

    assert connected[0][0] == ("horovod",)
    assert isinstance(reducer_of(strategy), HorovodReducer)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"bucket_bytes": 0},
            "bucket_bytes is not for Horovod, which joins the gradients that are there "
            "at the same time. Received: bucket_bytes=0. Use `tfdist run "
            "--fusion-threshold-mb`, or HorovodStrategy(groups=...).",
        ),
        ({"compression": "bf16"}, "Horovod has no compression but 'fp16'"),
    ],
)
def test_all_reduce_refuses_what_horovod_has_not(options, text, connected):
    with pytest.raises(ValueError, match=re.escape(text)):
        AllReduceStrategy("horovod", **options)


@pytest.mark.parametrize("options", [{"op": "sum"}, {"groups": [["not/there"]]}])
def test_alone_gradients_stay_as_they_are(options, connected):
    connected.collective = SingleCollective()

    assert type(reducer_of(HorovodStrategy(**options))) is GradientReducer
