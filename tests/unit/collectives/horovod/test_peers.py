"""What needs no other process; `tests/distributed/` has the rest."""

import re
import socket
import threading
from types import SimpleNamespace

import pytest

from tfdist.cluster.model import Place

pytestmark = pytest.mark.requires("horovodrun")

SECONDS = 120


class Horovod:
    """What `horovod.tensorflow` is asked for, in a job that a test describes."""

    def __init__(self, size=2, local_size=2, is_initialized=False):
        self.calls = []
        self.size, self.local_size = (lambda: size), (lambda: local_size)
        self.rank, self.local_rank = (lambda: 7), (lambda: 1)
        self.is_initialized = lambda: is_initialized
        self.mpi_built = lambda: False
        self.init = lambda: self.calls.append("init")
        self.stopped = threading.Event()

    def allgather_object(self, guest, name, process_set):
        return [guest] * process_set.size()

    def shutdown(self):
        self.calls.append("shutdown")
        self.stopped.set()


@pytest.fixture
def peers():
    """The module, which only imports Horovod; no test may start it in this process."""
    from tfdist.collectives.horovod import peers as horovod_peers

    return horovod_peers


@pytest.fixture
def horovod(peers, monkeypatch):
    def put(**options):
        monkeypatch.setattr(peers, "hvd", Horovod(**options))
        return peers.hvd

    return put


def ranks(rank, size=2):
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


@pytest.mark.parametrize(("is_initialized", "calls"), [(True, []), (False, ["init"])])
def test_horovod_is_started_unless_the_program_has(
    is_initialized, calls, peers, horovod
):
    found = horovod(size=3, is_initialized=is_initialized)

    assert peers.start(Place(rank=1, size=3, launcher="mpirun")) == 3
    assert found.calls == calls


@pytest.mark.parametrize(
    ("place", "size", "received"),
    [
        (Place(1, 2, launcher="tfdist run"), 1, "2 of tfdist run, 1 of Horovod"),
        (Place(), 2, "1 of no launcher, 2 of Horovod"),
    ],
)
def test_horovod_must_join_those_that_were_started(
    place, size, received, peers, horovod
):
    horovod(size=size)
    text = (
        "Horovod does not join the processes that were started. Received: "
        f"{received}, which is built without MPI. Start the program with `tfdist run "
        "--collective horovod` or `horovodrun`; with `mpirun` only if Horovod is built "
        "with MPI."
    )
    with pytest.raises(RuntimeError, match=re.escape(text)):
        peers.start(place)


def test_on_one_host_no_other_host_can_connect(peers, horovod):
    horovod(size=2, local_size=2)

    guests, door = peers.gather_guests(ranks(0), SECONDS)

    with door:
        assert guests[0].addresses == ("127.0.0.1",)
        assert door.getsockname() == ("127.0.0.1", guests[0].port)
        assert (guests[0].host, len(guests[0].token)) == (socket.gethostname(), 32)


def test_on_several_hosts_the_door_is_open_at_every_address(peers, horovod):
    horovod(size=4, local_size=2)

    guests, door = peers.gather_guests(ranks(0, 4), SECONDS)

    with door:
        assert guests[0].addresses[-1] == socket.gethostname()
        assert not any(address.startswith("127.") for address in guests[0].addresses)
        host, port, *_ = door.getsockname()
        assert (host in ("::", "0.0.0.0"), port) == (True, guests[0].port)


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(peers, horovod):
    found = horovod()

    def wait(guest, name, process_set):
        assert found.stopped.wait(SECONDS)
        raise OSError("Horovod has been shut down")

    found.allgather_object = wait
    text = (
        "Not every rank takes part in the training. Received: nothing from some of the "
        "2 ranks after 0.1 s, on rank 7. Make the strategy, or train with the wrapped "
        "optimizer, on every one of them: one may have had no batch, or run another "
        "program. If one only comes later, set TFDIST_START_TIMEOUT to more seconds."
    )
    with pytest.raises(TimeoutError, match=re.escape(text)):
        peers.gather_guests(ranks(1), 0.1)
    assert found.calls == ["shutdown"]


def test_a_horovod_that_does_not_stop_ends_the_process(
    peers, horovod, monkeypatch, capsys
):
    found = horovod()
    codes, may_end = [], threading.Event()
    found.shutdown = lambda: may_end.wait(SECONDS)
    monkeypatch.setattr(peers, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(peers.os, "_exit", codes.append)

    peers.stop("rank 1 is gone")
    may_end.set()

    assert codes == [1]
    assert capsys.readouterr().err == (
        "tfdist: Horovod does not stop after 0.1 s, so this process ends. rank 1 is "
        "gone\n"
    )
