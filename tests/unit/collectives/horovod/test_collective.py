"""What `HorovodCollective` refuses; `tests/distributed/test_collectives.py` uses
it."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.requires("horovodrun")


@pytest.mark.parametrize(
    ("op", "size", "is_everyone", "has_mpi", "received"),
    [
        ("sum", 3, False, False, None),
        ("adasum", 8, True, True, None),
        ("adasum", 2, True, False, "2 processes, all ranks, over Gloo"),
        ("adasum", 6, True, True, "6 processes, all ranks, over MPI"),
        ("adasum", 2, False, True, "2 processes, a process set, over MPI"),
    ],
)
def test_adasum_is_refused_where_horovod_has_none(
    op, size, is_everyone, has_mpi, received, monkeypatch
):
    from tfdist.collectives.horovod import collective as horovod

    ranks = SimpleNamespace(size=lambda: size)
    monkeypatch.setattr(horovod.hvd, "mpi_enabled", lambda: has_mpi)
    if is_everyone:
        monkeypatch.setattr(horovod.hvd, "global_process_set", ranks)
    text = (
        "Adasum needs MPI and a power of two of processes, all in one set. Received: "
        f"{received}. Start 2, 4, 8, ... with `mpirun`, or use the average."
    )
    is_refused = pytest.raises(ValueError, match=re.escape(text))
    with is_refused if received else nullcontext():
        horovod.HorovodCollective.check_op(SimpleNamespace(process_set=ranks), op)


@pytest.mark.parametrize("is_list", [True, False])
def test_a_process_set_is_one_that_horovod_knows(is_list):
    from tfdist.collectives.horovod import collective as horovod

    with pytest.raises(
        ValueError,
        match=r"process_set must be a ProcessSet that Horovod knows\. Received: .*"
        r"\[0, 2\].*\. Give it to init\(process_sets=\[\.\.\.\]\) on every rank first",
    ):
        horovod.check_process_set([0, 2] if is_list else horovod.hvd.ProcessSet([0, 2]))
