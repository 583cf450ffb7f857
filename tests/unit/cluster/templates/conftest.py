"""Clusters of every shape, for what must survive being written and read again."""

import pytest
from hypothesis import strategies as st

from tfdist.cluster import Cluster, Task
from tfdist.cluster.hosts.slots import HostSlots, number_ports

NAMES = st.from_regex(
    r"[a-z][a-z0-9]{0,6}(-[0-9]{1,3})?(\.[a-z]{2,5})?", fullmatch=True
)
NUMBERS = st.sampled_from(["10.0.0.3", "192.168.7.20", "[fe80::4]", "[2001:db8::1]"])
HOSTS = (NAMES | NUMBERS).filter(lambda host: host != "localhost")
PORTS = st.integers(1, 65_535)


@st.composite
def any_cluster(draw):
    """Draw a cluster with any jobs, as one of its tasks sees it."""
    counts = {
        "chief": draw(st.integers(0, 1)),
        "worker": draw(st.integers(0, 5)),
        "ps": draw(st.integers(0, 3)),
        "evaluator": draw(st.integers(0, 1)),
    }
    if not counts["chief"]:
        counts["worker"] = max(1, counts["worker"])
    size = sum(counts.values())
    places = draw(
        st.lists(st.tuples(HOSTS, PORTS), unique=True, min_size=size, max_size=size)
    )
    addresses = [f"{host}:{port}" for host, port in places]
    jobs = {
        job: tuple(addresses.pop() for _ in range(count))
        for job, count in counts.items()
    }
    job = draw(st.sampled_from([job for job, count in counts.items() if count]))
    return Cluster(
        chief=next(iter(jobs["chief"]), None),
        workers=jobs["worker"],
        ps=jobs["ps"],
        evaluators=jobs["evaluator"],
        task=Task(job, draw(st.integers(0, counts[job] - 1))),
    )


@st.composite
def some_hosts(draw, names=HOSTS, *, equal=False):
    """Draw different hosts with their slots."""
    found = draw(st.lists(names, unique=True, min_size=1, max_size=6))
    slots = draw(st.integers(1, 5))
    return tuple(
        HostSlots(host, slots if equal else draw(st.integers(1, 5))) for host in found
    )


@pytest.fixture(scope="session")
def clusters():
    """Return a strategy for clusters with any jobs."""
    return any_cluster()


@pytest.fixture(scope="session")
def hosts():
    """Return a strategy for hosts with slots."""
    return some_hosts()


@pytest.fixture(scope="session")
def equal_hosts():
    """Return a strategy for hosts by name, with as many slots each."""
    return some_hosts(NAMES.filter(lambda host: host != "localhost"), equal=True)


@pytest.fixture(scope="session")
def on_hosts():
    """Return what makes a cluster of workers on hosts, with ports counted up."""

    def on_hosts(hosts, port=2222):
        return Cluster(workers=number_ports(hosts, port))

    return on_hosts
