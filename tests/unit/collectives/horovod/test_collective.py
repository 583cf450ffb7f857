"""What `HorovodCollective` refuses; `tests/distributed/test_collectives.py` uses
it."""

import re
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize(
    ("op", "size", "is_everyone", "has_mpi"),
    [
        ("average", 3, False, False),
        ("sum", 3, False, False),
        ("adasum", 2, True, True),
        ("adasum", 8, True, True),
    ],
)
def test_what_horovod_can_do_here_is_accepted(
    op, size, is_everyone, has_mpi, monkeypatch
):
    assert check_op(monkeypatch, op, size, is_everyone, has_mpi) is None


@pytest.mark.parametrize(
    ("size", "is_everyone", "has_mpi", "received"),
    [
        (2, True, False, "2 processes, all ranks, over Gloo"),
        (3, True, True, "3 processes, all ranks, over MPI"),
        (6, True, True, "6 processes, all ranks, over MPI"),
        (2, False, True, "2 processes, a process set, over MPI"),
    ],
)
def test_adasum_is_refused_where_horovod_has_none(
    size, is_everyone, has_mpi, received, monkeypatch
):
    text = (
        "op='adasum' needs MPI and a power of two of processes, all in one set. "
        f"Received: {received}. Start 2, 4, 8, ... with `mpirun`, or use op='average'."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        check_op(monkeypatch, "adasum", size, is_everyone, has_mpi)


def check_op(monkeypatch, op, size, is_everyone, has_mpi):
    from tfdist.collectives.horovod import collective as horovod

    collective = SimpleNamespace(size=size, _is_everyone=is_everyone)
    monkeypatch.setattr(horovod.hvd, "mpi_enabled", lambda: has_mpi)
    return horovod.HorovodCollective.check_op(collective, op)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda hvd: [0, 2],
            TypeError,
            "process_set must be a ProcessSet of Horovod. Received: process_set=[0, 2]."
            " Make one of the ranks, and give it to init(process_sets=[...]) on every "
            "rank first.",
        ),
        (
            lambda hvd: hvd.ProcessSet([0, 2]),
            ValueError,
            "process_set must be known to Horovod. Received: ProcessSet("
            "process_set_id=None, ranks=[0, 2], mpi_comm=None). Give it to "
            "init(process_sets=[...]) on every rank first.",
        ),
    ],
)
def test_a_process_set_is_one_that_horovod_knows(make, error, text):
    from tfdist.collectives.horovod import collective as horovod

    check = {TypeError: horovod.check_process_set, ValueError: horovod.check_included}
    with pytest.raises(error, match=re.escape(text)):
        check[error](make(horovod.hvd))
