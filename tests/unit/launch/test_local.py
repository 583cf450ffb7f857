"""A job on this machine, as a library starts it."""

import os
import shlex
import signal
import sys
import threading

import pytest

from tfdist.cluster import detect
from tfdist.launch import Job, Output, ProcessSpec, plan_here, run, shell_lines

QUIET = Output(console=False)


def script(text, rank=0):
    return ProcessSpec(rank, ("/bin/sh", "-c", text), {})


def test_the_plan_has_this_machines_ports_and_cores():
    specs = plan_here(Job(("/bin/true",), size=2, bind_to="none"))

    clusters = [detect(spec.env) for spec in specs]
    assert [cluster.rank for cluster in clusters] == [0, 1]
    assert len(set(clusters[0].addresses)) == 2
    threads = {spec.env.get("OMP_NUM_THREADS") for spec in specs}
    assert threads <= {str(n) for n in range(1, os.cpu_count() + 1)} | {None}


def test_every_run_has_a_name_of_its_own():
    job = Job(("/bin/true",), size=2)
    first, second, other = *plan_here(job), plan_here(job)[0]

    assert first.env["TFDIST_RUN_ID"] == second.env["TFDIST_RUN_ID"]
    assert first.env["TFDIST_RUN_ID"] != other.env["TFDIST_RUN_ID"]


def test_run_returns_how_it_ended():
    result = run([script("exit 0"), script("exit 4", rank=1)], output=QUIET)

    assert (result.failed_rank, result.exit_code) == (1, 4)


def test_the_rendezvous_of_a_horovod_job_has_a_port_of_its_own():
    specs = plan_here(Job(("/bin/true",), size=2, collective="horovod"))

    port = specs[0].env["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    assert f"127.0.0.1:{port}" not in detect(specs[0].env).addresses


def test_lines_for_a_shell():
    job = Job(("/bin/true",), size=2)
    specs = plan_here(job)
    assert shell_lines(specs) == [spec.shell_line() for spec in specs]


def test_lines_for_a_shell_begin_with_the_rendezvous_of_a_horovod_job():
    specs = plan_here(Job(("/bin/true",), size=2, collective="horovod"))

    server, *ranks = shell_lines(specs)

    assert ranks == [spec.shell_line() for spec in specs]
    port = specs[0].env["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    code = f"from tfdist.launch.horovod import serve; serve(2, {port})"
    assert shlex.split(server) == [sys.executable, "-c", code]


def test_each_horovod_job_has_a_rendezvous_of_its_own():
    program = ("/bin/true",)
    alone, *both = (
        spec
        for size in (1, 2)
        for spec in plan_here(Job(program, size=size, collective="horovod"))
    )

    servers = shell_lines([alone, *plan_here(Job(program, size=1)), *both])[:2]

    assert [line.split("serve(")[1].split(",")[0] for line in servers] == ["1", "2"]


PING = (
    "import http.client, os\n"
    "port = os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']\n"
    "server = http.client.HTTPConnection('127.0.0.1', int(port))\n"
    "server.request('GET', '/global/key')\n"
    "raise SystemExit(server.getresponse().status != 404)\n"
)


@pytest.mark.requires("horovodrun")
def test_a_horovod_job_is_served_while_it_runs():
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    job = Job((sys.executable, "-c", PING), size=2, collective="horovod")

    result = run(plan_here(job), output=QUIET)

    assert result.exit_code == 0, result.exits
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_job_without_horovod_does_not_look_for_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)

    assert run([script("exit 0")], output=QUIET).exit_code == 0
    with pytest.raises(ImportError, match="Run `tfdist horovod install`"):
        run(plan_here(Job(("/bin/true",), size=1, collective="horovod")))


@pytest.mark.parametrize("seconds", [float("nan"), 0, -1.5])
def test_the_timeout_is_positive(seconds):
    with pytest.raises(ValueError, match=rf"timeout_seconds={seconds}\. Leave it out"):
        run([script("exit 0")], timeout_seconds=seconds)


def test_restarts_are_not_negative():
    with pytest.raises(ValueError, match=r"restarts=-1\. Use 0 to start no worker"):
        run([script("exit 0")], restarts=-1)


def test_the_plan_has_a_port_for_each_task():
    specs = plan_here(Job(("/bin/true",), workers=2, ps=1))

    assert [spec.name for spec in specs] == ["chief", "worker 0", "worker 1", "ps 0"]
    jobs = detect(specs[3].env).jobs
    assert len({address for job in jobs.values() for address in job}) == 4


def test_run_leaves_no_descriptor_or_thread_behind():
    before = set(os.listdir("/proc/self/fd")), threading.active_count()

    run([script("exit 0")], output=QUIET)

    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_signals_are_not_touched_unless_wanted():
    before = signal.getsignal(signal.SIGINT)

    result = run([script("kill -USR1 $$")], output=QUIET)

    assert signal.getsignal(signal.SIGINT) is before
    assert result.exits[0].code == -signal.SIGUSR1


def test_wanted_signals_are_passed_on():
    parent = os.getpid()
    text = f"trap 'exit 0' USR1; kill -USR1 {parent}; while :; do sleep 0.1; done"

    result = run([script(text)], output=QUIET, pass_signals_on=True)

    assert (result.reason, result.exit_code) == ("done", 0)


def test_an_interrupt_in_a_library_ends_the_ranks(tmp_path, assert_ends):
    """Ctrl-C in a pytest, say: nobody has asked for signals to be passed on."""
    pid = tmp_path / "pid"
    text = f"echo $$ > {pid}; kill -INT {os.getpid()}; trap '' TERM; sleep 1000 & wait"

    with pytest.raises(KeyboardInterrupt):
        run([script(text)], output=QUIET)

    assert_ends(int(pid.read_text()))


def test_an_error_while_starting_ends_what_has_started(monkeypatch, tmp_path):
    broken = ProcessSpec(1, ("/bin/true",), {"A": "\0"})
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(ValueError, match="null byte"):
        run([script("sleep 1000"), broken], output=QUIET)

    assert set(os.listdir("/proc/self/fd")) == before


def test_the_plan_of_some_slots():
    specs = plan_here(Job(("/bin/true",), size=3), slots=(0, 2))

    assert [spec.env["TFDIST_SLOT"] for spec in specs] == ["0", "2"]
    assert [detect(spec.env).size for spec in specs] == [2, 2]
