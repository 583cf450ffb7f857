"""A job that is started again, with shell scripts in place of trainings."""

import json
import os
import signal
import tempfile
import threading
from dataclasses import replace

import pytest

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.launch import attempts as attempts_module
from tfdist.launch.attempts import Limits, run_job
from tfdist.launch.hosts import Hosts
from tfdist.launch.job import Job
from tfdist.launch.output import Output
from tfdist.launch.restarts import Restarts
from tfdist.launch.result import Exit, RunResult
from tfdist.rendezvous.progress import Steps

QUIET = Output(console=False)
# Addresses of examples, which no machine has.
A, B = "203.0.113.1", "203.0.113.2"


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


def fails(times, folder, otherwise="exit 0"):
    """Return a script of which rank 1 fails so many times."""
    marks = f"{folder}/marks"
    return (
        f"touch {marks}; [ $TFDIST_RANK = 1 ] || exit 0; "
        f"if [ $(wc -l < {marks}) -lt {times} ]; then echo >> {marks}; exit 3; fi; "
        f"{otherwise}"
    )


def ends_of(attempts):
    return [attempt.result.exit_code for attempt in attempts]


def test_without_restarts_there_is_one_start(tmp_path):
    attempts = run_job(shell("exit $TFDIST_RANK"), output=QUIET)

    assert (ends_of(attempts), attempts[0].slots) == ([1], (0, 1))


def test_a_job_is_started_until_it_ends_well(tmp_path):
    told = []
    job = shell(fails(2, tmp_path))

    attempts = run_job(
        job, Restarts(5), output=QUIET, on_restart=lambda *news: told.append(news)
    )

    assert ends_of(attempts) == [3, 3, 0]
    assert [result for result, _ in told] == [a.result for a in attempts[:-1]]
    assert [line.split(" after")[0] for _, line in told] == [
        "restart 1 of 5: rank 1 failed with exit code 3",
        "restart 2 of 5: rank 1 failed with exit code 3",
    ]


def test_the_last_start_tells_how_the_job_has_ended(tmp_path):
    attempts = run_job(shell(fails(9, tmp_path)), Restarts(2), output=QUIET)

    assert ends_of(attempts) == [3, 3, 3]


def test_each_start_is_another_run(tmp_path):
    names = "$TFDIST_RUN_ID $TFDIST_PROGRESS_FILE ${TF_CONFIG// /}"
    job = shell(f"echo {names} >> {tmp_path}/names; exit 3", size=1)

    run_job(job, Restarts(2), output=QUIET)

    lines = (tmp_path / "names").read_text().splitlines()
    assert [len({line.split()[i] for line in lines}) for i in (0, 1, 2)] == [3, 3, 3]


def test_a_slot_that_stays_dead_is_left_out(tmp_path):
    place = "$TFDIST_SLOT $TFDIST_RANK $TFDIST_SIZE"
    log = f"{tmp_path}/$TFDIST_SLOT"
    job = shell(f"echo {place} >> {log}; [ $TFDIST_SLOT != 1 ]", size=3)

    attempts = run_job(job, Restarts(5, min_size=2), output=QUIET)

    assert [attempt.slots for attempt in attempts] == [(0, 1, 2)] * 2 + [(0, 2)]
    assert ends_of(attempts) == [1, 1, 0]
    assert (tmp_path / "2").read_text().splitlines() == ["2 2 3"] * 2 + ["2 1 2"]


def test_the_steps_of_each_start_are_read(tmp_path):
    numbers = r"'\x32\0\0\0\0\0\0\0\x39\0\0\0\0\0\0\0'"
    job = shell(f"printf {numbers} > $TFDIST_PROGRESS_FILE; exit 3", size=1)

    attempts = run_job(job, Restarts(1), output=QUIET)

    assert [attempt.steps for attempt in attempts] == [Steps(50, 57)] * 2


def test_without_restarts_nobody_asks_for_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_PROGRESS_FILE", "somebody else's")

    [attempt] = run_job(shell("exit ${TFDIST_PROGRESS_FILE:+3}", size=1))

    assert (attempt.result.exit_code, attempt.steps) == (0, Steps())


def test_the_logs_hold_all_starts_of_this_run(tmp_path):
    (tmp_path / "rank.0.log").write_text("old")
    job = shell("echo start; exit 3", size=1)

    run_job(job, Restarts(2), output=Output(console=False, directory=tmp_path))

    assert (tmp_path / "rank.0.log").read_text() == "start\n" * 3


def test_a_signal_is_no_failure(tmp_path):
    job = shell(f"kill -INT {os.getpid()}; sleep 1000", size=1)

    attempts = run_job(job, Restarts(5), output=QUIET)

    assert ends_of(attempts) == [130]


def test_a_signal_after_a_failure_ends_the_job(tmp_path):
    stay = f"trap '' TERM; kill -TERM {os.getpid()}; sleep 1000"
    script = f"[ $TFDIST_RANK = 0 ] || exit 3; read -t 0.3 <> <(:); {stay}"

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


def test_the_time_is_that_of_all_starts(tmp_path):
    job = shell(fails(1, tmp_path, otherwise="sleep 1000"))

    attempts = run_job(
        job, Restarts(5), output=QUIET, limits=Limits(timeout_seconds=2.5)
    )

    assert ends_of(attempts) == [3, 124]
    assert attempts[1].result.headline().startswith("the run did not end within 2.5 s")
    assert attempts[1].result.exits[1].seconds < 2.5


def test_when_the_time_is_up_there_is_no_other_start(monkeypatch):
    """It can end later than its time, as its processes may take a while to end."""
    failed = RunResult((Exit(0, 3, 1.0),), "failed", failed_rank=0)
    monkeypatch.setattr(attempts_module, "run_once", lambda *specs, **options: failed)
    limits = Limits(timeout_seconds=1e-9)

    attempts = run_job(shell("", size=1), Restarts(5), output=QUIET, limits=limits)

    assert [attempt.result for attempt in attempts] == [failed]


def test_a_job_with_parameter_servers_is_started_again(tmp_path):
    """A server cannot be missed: all of the job begins anew, with new ports."""
    script = (
        f'echo "$TF_CONFIG" >> "{tmp_path}/$TFDIST_TASK"; '
        "case $TFDIST_TASK in ps*) exit 4;; esac; sleep 1000"
    )
    job = Job(("/bin/bash", "-c", script), workers=1, ps=1)

    attempts = run_job(job, Restarts(1), output=QUIET, limits=Limits(worker_restarts=0))

    assert ends_of(attempts) == [4, 4]
    assert len(set((tmp_path / "ps 0").read_text().splitlines())) == 2


@pytest.fixture
def hosts(ssh):
    """Return two hosts, for which shells stand."""
    return Hosts((HostSlots(A, 2), HostSlots(B, 1)), ssh=ssh, start_timeout_seconds=30)


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
    limits = Limits(timeout_seconds=60, grace_seconds=0.1)

    [attempt] = run_job(job, output=QUIET, hosts=hosts, limits=limits)

    assert attempt.result.exit_code == 0
    assert [one.host for one in attempt.result.exits] == [A, B, B]
    first, second = mark.read_text().splitlines()
    assert first == second
    assert len((tmp_path / "chief 0").read_text().splitlines()) == 1


def test_restarts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"min_size=3, size=2\. Leave it out"):
        run_job(shell("exit 0"), Restarts(1, min_size=3))


def test_limits_that_no_run_can_keep_are_refused():
    with pytest.raises(ValueError, match=r"timeout_seconds=0\. Leave it out"):
        run_job(shell("exit 0"), limits=Limits(timeout_seconds=0))
    with pytest.raises(ValueError, match=r"restarts=-1\. Use 0 to start no worker"):
        run_job(shell("exit 0"), limits=Limits(worker_restarts=-1))


def test_nothing_is_left_behind(tmp_path):
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    handler = signal.getsignal(signal.SIGINT)

    run_job(shell(fails(2, tmp_path)), Restarts(2), output=QUIET)

    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert signal.getsignal(signal.SIGINT) is handler
