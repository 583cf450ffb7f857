"""What `tfdist.launch` refuses, and what it makes of the end of a rank.

Real processes: tests/distributed/test_launch.py.
"""

import json
import pickle
import threading

import pytest

import tfdist
from tfdist.launching.function.call import RankEnd
from tfdist.launching.function.child import result_file
from tfdist.launching.function.worker import Rendezvous, by_host
from tfdist.launching.result import Exit, RunResult


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processes": 0}, "whole number from 1. Received: processes=0"),
        ({"processes": True}, "whole number from 1. Received: processes=True"),
        ({"processes": 2.0}, "whole number from 1. Received: processes=2.0"),
        ({"on": "slurm"}, "must be one of .* Received: on='slurm'"),
        ({"on": "ray", "collective": "mpi"}, "TensorFlow's collectives join"),
        ({"resources": {"GPU": 1}}, "what Ray reserves .* on='local'"),
        ({"collective": "nccl"}, "collective must be one of"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfdist.launch(print, **{"processes": 2, **arguments})


def test_what_cannot_be_pickled_is_refused():
    lock = threading.Lock()

    with pytest.raises(TypeError, match=r"Received: function .*cannot pickle '_thread"):
        tfdist.launch(lambda: lock, processes=2)
    with pytest.raises(TypeError, match=r"Received: arguments .*Make datasets"):
        tfdist.launch(print, lock, processes=2)
    with pytest.raises(TypeError, match="function must be what the processes call"):
        tfdist.launch(3, processes=2)


class OfTwo(Exception):
    """An exception that pickles, but whose constructor takes another argument."""

    def __init__(self, first, second):
        super().__init__(first)


def end_of(folder, content, *exits, **failure):
    """Return the end that counts of a run that has left one result, that of rank 0."""
    if content is not None:
        result_file(folder, 0).write_bytes(content)
    return RankEnd.of(RunResult(exits, **failure), folder, 2)


def test_a_value_comes_back_unless_the_rank_fails_later(tmp_path):
    content = pickle.dumps((5, None))

    good = end_of(tmp_path, content, Exit(0, 0, 1.0))
    late = end_of(tmp_path, content, Exit(0, -11, 1.0), reason="failed", failed_rank=0)

    assert good.value() == 5
    with pytest.raises(RuntimeError, match=r"rank 0 was killed by SIGSEGV after 1.0 s"):
        late.value()


def test_an_exception_that_cannot_be_unpickled_is_described(tmp_path):
    error = ("OfTwo", "a", "Traceback\n", pickle.dumps(OfTwo("a", "b")))
    end = end_of(tmp_path, pickle.dumps((None, error)), Exit(0, 1, 1.0))

    with pytest.raises(RuntimeError, match="rank 0 of 2 raised OfTwo: a") as raised:
        end.value()
    assert "of rank 0 of 2\n\nTraceback" in str(raised.value.__cause__)


def test_an_end_without_a_value_shows_the_last_lines(tmp_path):
    with pytest.raises(RuntimeError, match="rank 0 ended without a value.") as raised:
        end_of(tmp_path, None, Exit(0, 0, 1.0, ("one", "two"))).value()
    assert str(raised.value).endswith("\nThe last lines of rank 0:\none\ntwo")


def test_a_value_of_a_class_that_is_unknown_here(tmp_path):
    end = end_of(tmp_path, b"cmissing_module\nName\n.", Exit(0, 0, 1.0))

    with pytest.raises(RuntimeError, match="can be unpickled here. Received: Module"):
        end.value()


def test_of_an_engines_workers_those_of_a_host_are_neighbours():
    given = ["10.0.0.2:5", "10.0.0.1:6", "10.0.0.2:7"]
    addresses = by_host(given)
    rendezvous = Rendezvous()

    assert addresses == ["10.0.0.2:5", "10.0.0.2:7", "10.0.0.1:6"]
    second, last = (rendezvous.spec(addresses, rank, 4) for rank in (1, 2))
    cluster = {"worker": addresses}
    task = {"type": "worker", "index": 1}
    assert json.loads(second.env["TF_CONFIG"]) == {"cluster": cluster, "task": task}
    places = [
        [spec.env[f"TFDIST_{name}"] for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE")]
        for spec in (second, last)
    ]
    assert places == [["1", "1", "2"], ["2", "0", "1"]]
    assert second.env["TF_NUM_INTRAOP_THREADS"] == "4"
    assert second.env["TFDIST_SECRET"] == last.env["TFDIST_SECRET"] != ""
    assert "TF_USE_LEGACY_KERAS" in second.unset


def test_the_rank_that_failed_first_counts():
    late, first = RankEnd(1, 3, None, "b", 2.0), RankEnd(2, 3, None, "a", 1.0)
    good = RankEnd(0, 3)

    assert RankEnd.first([late, first, good]) is first
    assert RankEnd.first([RankEnd(1, 3), good]) is good
