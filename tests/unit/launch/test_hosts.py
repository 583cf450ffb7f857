import pytest

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.launch.hosts import Hosts, fill
from tfdist.launch.job import Job
from tfdist.launch.restarts import Restarts

TWO = Hosts((HostSlots("a", 2), HostSlots("b", 2)))
PROGRAM = ("/bin/true",)


@pytest.mark.parametrize(
    ("count", "slots"), [(4, [2, 2]), (3, [2, 1]), (2, [2]), (1, [1])]
)
def test_hosts_are_filled_in_order(count, slots):
    assert [host.slots for host in fill(TWO, count)] == slots


def test_too_few_slots_are_refused():
    message = (
        "^The hosts have too few slots for the processes of the job. "
        "Received: 5 processes, 4 slots. Start fewer processes, or"
    )
    with pytest.raises(ValueError, match=message):
        fill(TWO, 5)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
def test_a_name_that_means_each_host_itself_is_refused_among_several(name):
    hosts = Hosts((HostSlots("a"), HostSlots(name)))

    assert fill(Hosts((HostSlots(name, 2),)), 2) == (HostSlots(name, 2),)
    message = "^A host among several needs a name by which the others reach it."
    with pytest.raises(ValueError, match=message):
        fill(hosts, 2)


def test_what_is_for_one_machine_is_refused():
    TWO.check(Job(PROGRAM, size=2), Restarts(2))

    message = "^--collective horovod starts its processes on this machine only."
    with pytest.raises(ValueError, match=message):
        TWO.check(Job(PROGRAM, size=2, collective="horovod"), Restarts())
    message = "^--min-np is for the places of one machine. Received: hosts besides."
    with pytest.raises(ValueError, match=message):
        TWO.check(Job(PROGRAM, size=2), Restarts(2, min_size=1))
