"""The simulated rank, which takes its place without any other process."""

import pytest
import tensorflow as tf

from tfdist.estimate.meter import Meter
from tfdist.observing import observed_by
from tfdist.strategies.connecting import connect


@pytest.fixture
def meter():
    with observed_by(Meter(engine="tensorflow", ranks=3, steps=2)):
        yield


def test_a_simulated_rank_gets_its_own_values_back(meter):
    collective = connect("auto")

    assert (collective.rank, collective.size) == (0, 3)
    (total,) = collective.all_reduce([tf.constant([1.0])], name="values")
    assert total.numpy().tolist() == [1.0]
    gathered = collective.all_gather(tf.constant([[7]]), name="rows")
    assert gathered.numpy().tolist() == [[7]] * 3
    assert collective.exchange("name", 5) == [5, 5, 5]


def test_another_library_than_that_which_is_measured_is_refused(meter):
    with pytest.raises(
        ValueError,
        match=r"The script must train over the library that is measured\. Received: "
        r"collective='mpi' in the script, and --collective tensorflow\. Give "
        r"--collective mpi\.",
    ):
        connect("mpi")
