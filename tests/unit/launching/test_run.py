"""Jobs on this machine, run once or again, with scripts in place of trainings."""

import json
import os
import signal
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.cluster import Cluster
from tfdist.cluster.hosts import HostSlots
from tfdist.launching import machine
from tfdist.launching.hosts import Hosts, Pods
from tfdist.launching.job import Job, Limits, ProcessSpec
from tfdist.launching.output import Output
from tfdist.launching.restarts import Restarts
from tfdist.launching.runner import run, run_job, secret_of

QUIET = Output(console=False)


def script(text, rank=0):
    return ProcessSpec(rank, ("/bin/sh", "-c", text), {})


def left_behind():
    """Return how many files, but for claims of ports, and threads there are."""
    files = len(os.listdir("/proc/self/fd")) - len(machine._claims)
    return files, threading.active_count()


def test_a_job_without_horovod_does_not_look_for_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)

    assert run([script("exit 0")], output=QUIET).exit_code == 0


def test_an_interrupt_in_a_library_ends_the_ranks(tmp_path, assert_ends):
    """Ctrl-C in a pytest, say: nobody has asked for signals to be passed on."""
    pid = tmp_path / "pid"
    text = f"echo $$ > {pid}; kill -INT {os.getpid()}; trap '' TERM; sleep 1000 & wait"

    with pytest.raises(KeyboardInterrupt):
        run([script(text)], output=QUIET)

    assert_ends(int(pid.read_text()))


def test_an_error_while_starting_ends_what_has_started():
    broken = ProcessSpec(1, ("/bin/true",), {"A": "\0"})
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(ValueError, match="null byte"):
        run([script("sleep 1000"), broken], output=QUIET)

    assert set(os.listdir("/proc/self/fd")) == before


# Addresses of examples, which no machine has.
A, B, C = "203.0.113.1", "203.0.113.2", "203.0.113.3"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Make temporary files in a folder of their own, which is empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def shell(script, size=2, **options):
    return Job(("/bin/bash", "-c", script), size=size, **options)


def ends_of(attempts):
    return [attempt.result.exit_code for attempt in attempts]


@pytest.fixture
def no_gpu(monkeypatch):
    """Let nothing on this machine keep the launcher from MPI."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("tfdist.launching.mpi.available_cores", lambda: (0, 1))


def test_mpi_shares_no_memory_folder_that_is_too_small(tmp_path, no_gpu, monkeypatch):
    usage = SimpleNamespace(free=2**25)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    script = f"echo $OMPI_MCA_btl_sm_backing_directory >> {tmp_path}/folders"

    run_job(shell(script), output=QUIET)

    folders = {*(tmp_path / "folders").read_text().split()}
    assert [Path(folder).parent for folder in folders] == [Path(tempfile.gettempdir())]


def test_tensorflow_joins_the_ranks_where_mpirun_fails(
    tmp_path, write_program, no_gpu, monkeypatch, capfd
):
    for name in "mpirun", "prterun":
        write_program(f"bin/{name}", "echo no network >&2; exit 1")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    script = f"echo $TF_CONFIG >> {tmp_path}/marks"

    assert ends_of(run_job(shell(script), output=QUIET)) == [0]
    assert len((tmp_path / "marks").read_text().splitlines()) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line == (
        "tfdist run: TensorFlow joins the ranks: mpirun does not start a job of Open "
        "MPI. Received: 0 of 2 ranks, and: no network. Use --collective tensorflow, "
        "which needs no MPI."
    )
    with pytest.raises(OSError, match=r"^mpirun does not start a job of Open MPI\."):
        run_job(shell(script, collective="mpi"), output=QUIET)


def test_each_start_has_a_log_file_of_its_own(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "restart7").mkdir()
    old = "rank.0.restart7.log", "rank.0.flight", "restart7/rank.0.flight", "job.jsonl"
    for name in "rank.0.log", "rank.00.log", "rank.0.log.gz", *old:
        (logs / name).write_text("old")
    job = shell("echo $TFDIST_RUN_ID; exit 3", size=1)

    run_job(job, Restarts(2), output=Output(console=False, directory=logs))

    new = {"rank.0.log", "rank.0.restart1.log", "rank.0.restart2.log"}
    assert {path.name for path in logs.rglob("*")} == {
        *new,
        "job.jsonl",
        "restart7",
        "rank.00.log",
        "rank.0.log.gz",
    }
    assert len({(logs / name).read_text() for name in new} - {"old"}) == 3
    ends = [json.loads(line) for line in (logs / "job.jsonl").read_text().splitlines()]
    assert [end["start"] for end in ends] == [0, 1, 2]
    assert {end["reason"][:18] for end in ends} == {"rank 0 failed with"}


def test_a_signal_after_a_failure_ends_the_job(tmp_path, monkeypatch):
    # However long the other rank takes to end by itself.
    monkeypatch.setattr("tfdist.launching.supervisor._SETTLE_SECONDS", 100.0)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fail = f"{{ echo $$ > {fifo}; exit 3; }}"
    # The launcher has been told of a failure before the process is gone.
    wait = f"read -r pid < {fifo}; tail -s 0.05 --pid=$pid -f /dev/null"
    stay = f"trap '' TERM; kill -TERM {os.getpid()}; sleep 1000"
    script = f"[ $TFDIST_RANK = 0 ] || {fail}; {wait}; {stay}"

    [attempt] = run_job(shell(script), Restarts(5), output=QUIET)

    assert attempt.result.was_interrupted
    assert attempt.result.exit_code == 3


def test_a_signal_between_two_starts_ends_the_next():
    job = shell("[ $TFDIST_RANK = 0 ] && exit 3; sleep 1000")

    attempts = run_job(
        job,
        Restarts(5),
        output=QUIET,
        on_restart=lambda *news: os.kill(os.getpid(), signal.SIGTERM),
    )

    assert [attempt.result.reason for attempt in attempts] == ["failed", "signal"]


@pytest.fixture
def hosts(ssh):
    """Return two hosts, for which shells stand."""
    return Hosts((HostSlots(A, 2), HostSlots(B, 1)), ssh=ssh, start_timeout_seconds=300)


def test_a_job_on_hosts_is_started_again_on_them(tmp_path, hosts):
    told, job = [], shell(f'echo "$TF_CONFIG" >> {tmp_path}/names; exit 3', size=3)

    attempts = run_job(
        job,
        Restarts(1),
        output=QUIET,
        hosts=hosts,
        on_restart=lambda *news: told.append(news),
    )

    assert ends_of(attempts) == [3, 3]
    assert len(told) == 1
    for attempt in attempts:
        assert [one.host for one in attempt.result.exits] == [A, A, B]
    clusters = {
        str(json.loads(line)["cluster"]["worker"])
        for line in (tmp_path / "names").read_text().splitlines()
    }
    # Each start has ports of its own, so that none can take another's.
    assert len(clusters) == 2


@pytest.fixture
def breaking_ssh(tmp_path, write_program):
    """Return a command like ssh, for which B is away while the file "away" exists."""
    return write_program(
        "ssh",
        "for word; do host=$line; line=$word; done\n"
        f"[ $host = {B} ] && [ -e {tmp_path}/away ] && echo away >&2 && exit 255\n"
        'exec sh -c "$line"',
    )


def test_a_host_that_does_not_answer_again_is_replaced(tmp_path, breaking_ssh):
    hosts = Hosts((HostSlots(A), HostSlots(B), HostSlots(C)), ssh=breaking_ssh)
    restarts = Restarts(2, hosts=hosts.host_of_slots)
    lines = []
    job = shell(
        f"echo $TFDIST_SLOT >> {tmp_path}/$TFDIST_RANK; [ -e {tmp_path}/away ] && "
        f"exit 0; [ $TFDIST_RANK = 1 ] || exec sleep 1000; until [ -e {tmp_path}/0 ]; "
        f"do sleep 0.05; done; touch {tmp_path}/away; exit 3"
    )

    attempts = run_job(
        job,
        restarts,
        output=QUIET,
        hosts=hosts,
        on_restart=lambda result, line: lines.append(line),
    )

    assert [one.result.reason for one in attempts] == ["failed", "hosts", "done"]
    assert [one.host for one in attempts[-1].result.exits] == [A, C]
    assert (tmp_path / "0").read_text().split() == ["0", "0"]
    assert (tmp_path / "1").read_text().split() == ["1", "2"]
    assert lines[1].startswith(
        f"restart 2 of 2: The connection to {B} has ended with exit code 255. "
        "Received: away. "
    )
    assert f"Host {B} stays dead and is left out" in lines[1]


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_waited_for_without_a_spare(
    tmp_path, breaking_ssh
):
    hosts = Hosts((HostSlots(A), HostSlots(B)), ssh=breaking_ssh)
    away = f"{tmp_path}/away"
    wait = f"until [ -e {away} ]; do sleep 0.05; done"
    job = shell(f"[ $TFDIST_RANK = 1 ] && touch {away}; {wait}; exit 3")

    attempts = run_job(job, Restarts(1), output=QUIET, hosts=hosts)
    with pytest.raises(OSError, match=r"(?s)^The connection to .* Received: away\."):
        run_job(job, Restarts(1), output=QUIET, hosts=hosts)

    assert [one.result.reason for one in attempts] == ["failed", "hosts"]
    assert attempts[-1].result.exit_code == 255
    assert attempts[-1].result.headline().startswith(f"The connection to {B} has")


def test_a_worker_on_another_host_is_started_again(tmp_path, hosts):
    """The worker alone: the chief, and the server beside it, run on."""
    mark = tmp_path / "worker 0"
    script = (
        f'echo "$TF_CONFIG" >> "{tmp_path}/$TFDIST_TASK"; '
        f'case $TFDIST_TASK in ps*) exec sleep 1000;; chief*) until [ "$(wc -l < '
        f'"{mark}")" = 2 ]; do read -t 0.05 <> <(:); done; exit 0;; esac; '
        f'[ "$(wc -l < "{mark}")" = 2 ] && exec sleep 1000; exit 3'
    )
    job = Job(("/bin/bash", "-c", script), workers=1, ps=1)

    hosts = replace(hosts, slots=(HostSlots(A, 1), HostSlots(B, 2)))
    limits = Limits(timeout_seconds=300, grace_seconds=0.1)

    [attempt] = run_job(job, output=QUIET, hosts=hosts, limits=limits)

    assert attempt.result.exit_code == 0
    assert [one.host for one in attempt.result.exits] == [A, B, B]
    first, second = mark.read_text().splitlines()
    assert first == second
    assert len((tmp_path / "chief 0").read_text().splitlines()) == 1


def test_a_folder_that_a_cleaner_removes_costs_no_restart():
    job = shell('rm -r "${TFDIST_PROGRESS_FILE%/*}"; exit 3')

    attempts = run_job(job, Restarts(1), output=QUIET)

    assert [attempt.result.exit_code for attempt in attempts] == [3, 3]


def test_nothing_is_left_behind():
    before = left_behind()
    handler = signal.getsignal(signal.SIGINT)

    job = shell("[ $TFDIST_RESTARTS = 2 ] || exit 3")
    attempts = run_job(job, Restarts(2), output=QUIET)

    assert ends_of(attempts) == [3, 3, 0]
    assert left_behind() == before
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_last_saved_step_of_each_start_is_read(tmp_path):
    job = shell("printf %020d 57 > $TFDIST_PROGRESS_FILE; exit 3", size=1)

    attempts = run_job(job, Restarts(1), output=QUIET)

    assert [attempt.saved_step for attempt in attempts] == [57, 57]


@pytest.mark.parametrize("own", ["", "of the user"])
def test_each_start_of_a_job_has_a_secret_that_ps_does_not_show(
    tmp_path, monkeypatch, own
):
    monkeypatch.setenv("TFDIST_SECRET", own)
    out = tmp_path / "secrets"
    seen = tmp_path / "seen"
    job = shell(f"echo $TFDIST_SECRET >> {out}; ps -ef >> {seen}; exit 3", size=1)

    run_job(job, Restarts(1), output=QUIET)

    first, second = out.read_text().splitlines()
    shown = seen.read_text()
    assert "ps -ef" in shown
    assert first not in shown
    assert second not in shown
    if own:
        assert first == second == own
    else:
        assert len(first) == len(second) == 32
        assert first != second


def test_pods_get_their_secret_from_the_user():
    cluster = Cluster(workers=("a:1", "b:1"))

    assert secret_of(Pods(cluster)) == {}
    assert secret_of(None).keys() == {"TFDIST_SECRET"}
