import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.cluster.artefacts.workers import (
    equal_slots,
    hosts_of,
    port_of,
    workers_only,
)
from tfdist.cluster.host_slots import HostSlots

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


def test_workers_alone():
    assert workers_only(Cluster(workers=("a:1", "b:1")), "sbatch") == ("a:1", "b:1")


def test_other_jobs_are_refused():
    cluster = Cluster(chief="c:1", workers=("a:1",), ps=("p:1",))
    message = (
        "^--to sbatch holds workers only, which all run the same. "
        "Received: also chief, ps. Make the chief worker 0, and leave out"
    )
    with pytest.raises(ValueError, match=message):
        workers_only(cluster, "sbatch")


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.data())
def test_hosts_survive_the_round_trip(hosts, on_hosts, data):
    drawn = data.draw(hosts)

    assert hosts_of(on_hosts(drawn), "hostfile") == drawn


def test_a_host_is_written_as_it_was_first():
    cluster = Cluster(workers=("A:1", "a:2", "[fe80::1]:1"))

    assert hosts_of(cluster, "hostfile") == (HostSlots("A", 2), HostSlots("[fe80::1]"))


def test_ranks_that_go_round_the_hosts_are_refused():
    message = (
        "--to hostfile gives ranks to one host after another. "
        "Received: workers in the order a:1,b:1,a:2. Put those of each host"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hosts_of(Cluster(workers=("a:1", "b:1", "a:2")), "hostfile")


def test_different_slots_are_refused():
    message = (
        "^--to mpijob has one number of workers for all hosts. "
        "Received: a:2, b:1. Give each host as many"
    )
    with pytest.raises(ValueError, match=message):
        equal_slots((HostSlots("a", 2), HostSlots("b", 1)), "mpijob")


def test_the_first_port_is_that_of_all():
    assert port_of(("[fe80::1]:2222", "a:2223")) == 2222
