"""`tfdist run -H`: what it reads and refuses; nothing is started."""

import sys

import pytest

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.launch import Attempt, Exit, Hosts, RunResult
from tfdist_cli import run as run_module
from tfdist_cli.main import main

# 203.0.113.0/24 is for examples.
A, B = "203.0.113.1", "203.0.113.2"


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Return what the launcher is asked for, which is a double."""
    launched = []

    def run_job(job, restarts, **options):
        launched.append((job, options["hosts"]))
        return (Attempt(RunResult((Exit(0, 0, 1.0),)), (0,)),)

    monkeypatch.setattr(run_module, "run_job", run_job)
    return launched


def test_hosts_say_how_many_there_are(launched):
    assert main(["run", "-H", f"{A}:2,{B}", "true"]) == 0

    [(job, hosts)] = launched
    assert job.size == 3
    assert hosts == Hosts((HostSlots(A, 2), HostSlots(B, 1)))
    assert (hosts.ssh, hosts.python) == ("ssh", sys.executable)


def test_there_may_be_fewer_processes_than_slots(launched):
    main(["run", "-np", "2", "-H", f"{A}:2", "-H", B, "true"])

    [(job, hosts)] = launched
    assert job.size == 2
    assert [host.host for host in hosts.slots] == [A, B]


def test_hosts_may_stand_in_a_file(launched, tmp_path):
    (tmp_path / "hosts").write_text(f"{A} slots=2\n{B}\n")

    main(["run", "--hostfile", str(tmp_path / "hosts"), "true"])

    [(job, hosts)] = launched
    assert job.size == 3
    assert hosts.slots == (HostSlots(A, 2), HostSlots(B, 1))


def test_parameter_servers_may_be_on_hosts(launched):
    main(["run", "--workers", "2", "--ps", "1", "-H", f"{A}:2,{B}:2", "true"])

    [(job, _)] = launched
    assert (job.size, job.process_count) == (None, 4)


def test_the_options_of_hosts_arrive(launched):
    options = ["--ssh", "ssh -p 2222", "--python", "/env/python", "--start-timeout=7"]
    main(["run", "-H", A, *options, "true"])

    [(job, hosts)] = launched
    assert (hosts.ssh, hosts.python) == ("ssh -p 2222", "/env/python")
    assert hosts.start_timeout_seconds == 7
    assert job.env == {"TFDIST_START_TIMEOUT": "7"}


def test_processes_here_have_a_time_to_come_too(launched):
    main(["run", "-np", "2", "--start-timeout=7", "true"])

    [(job, hosts)] = launched
    assert hosts is None
    assert job.env == {"TFDIST_START_TIMEOUT": "7"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "-np 2 --ssh rsh",
            "--ssh has no effect without hosts. Received: --ssh rsh without -H and "
            "--hostfile. Leave it out",
        ),
        (
            "-np 2 --python /x",
            "--python has no effect without hosts. Received: --python /x without -H",
        ),
        (
            "-np 2 --start-timeout 0",
            "--start-timeout must be a positive number of seconds. "
            "Received: --start-timeout 0. Leave it out for 300.",
        ),
        (
            f"-np 4 -H {A}:2,{B}",
            "The hosts have too few slots for the processes of the job. "
            "Received: 4 processes, 3 slots.",
        ),
        (
            f"-H {A},localhost",
            "A host among several needs a name by which the others reach it. "
            "Received: localhost.",
        ),
        (
            f"-H {A} --hostfile hosts",
            f"-H and --hostfile both give the hosts. Received: -H {A} and "
            "--hostfile hosts. Leave one of them out.",
        ),
        (
            "--hostfile no_such_file",
            "--hostfile must be a file",
        ),
        (f"-H {A}:x", "entry 1 of -H must have a number of slots, at least 1."),
        (
            f"-H {A},{B} --collective horovod",
            "--collective horovod starts its processes on this machine only.",
        ),
    ],
)
def test_what_cannot_be_is_refused(line, message, capsys, launched):
    with pytest.raises(SystemExit) as ended:
        main(["run", *line.split(), "true"])

    assert ended.value.code == 2
    assert f"tfdist run: error: {message}" in capsys.readouterr().err
    assert launched == []


@pytest.mark.parametrize(
    ("options", "size"), [([], 5), (["-np", "4"], 4), (["--ssh", "ssh -q"], 5)]
)
def test_slurms_hosts_are_taken(options, size, launched, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[8-10]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2),1")

    assert main(["run", *options, "true"]) == 0

    [(job, hosts)] = launched
    assert job.size == size
    assert hosts.slots == (HostSlots("n8", 2), HostSlots("n9", 2), HostSlots("n10", 1))
    assert hosts.ssh == (options[1] if "--ssh" in options else "srun")
    said = capsys.readouterr().err
    assert said == "tfdist run: Slurm has given n8:2, n9:2, n10:1\n"


def test_on_the_only_node_of_a_job_np_counts(launched, monkeypatch):
    """A job with one task and many cores may well run several processes."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n8")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1")

    main(["run", "-np", "4", "true"])
    main(["run", "true"])

    (job, hosts), (alone, its) = launched
    assert (job.size, hosts) == (4, None)
    assert (alone.size, its.slots) == (1, (HostSlots("n8", 1),))


@pytest.mark.parametrize(("options", "size"), [([], 1), (["-np", "4"], 4)])
def test_a_pod_starts_its_part(options, size, launched, monkeypatch, capsys):
    monkeypatch.setenv("TFDIST_JOB_NAME", "train")
    monkeypatch.setenv("TFDIST_SERVICE", "peers")
    monkeypatch.setenv("TFDIST_WORKERS", "2")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")

    assert main(["run", *options, "true"]) == 0
    assert main(["run", *options, "--dry-run", "true"]) == 0

    [(job, pods)] = launched
    assert job.size == size
    assert pods.cluster.address == "train-1.peers:2222"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == size
    assert f"TFDIST_RANK={size} " in lines[0]


def test_hosts_that_are_given_come_before_slurms(launched, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[8-10]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2),1")

    main(["run", "-H", A, "true"])

    [(_, hosts)] = launched
    assert hosts.slots == (HostSlots(A, 1),)


def test_ctrl_c_while_hosts_are_called_ends_it(monkeypatch):
    def run_job(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_job", run_job)

    assert main(["run", "-H", A, "true"]) == 130


def test_a_dry_run_prints_what_reaches_the_hosts(capsys, monkeypatch):
    monkeypatch.setattr("tfdist.launch.local.is_this_machine", lambda host: host == A)
    line = f"run --dry-run -H {A},{B} --ssh"

    assert main([*line.split(), "ssh -p 2222", "true"]) == 0

    remark, here, there = capsys.readouterr().out.splitlines()
    assert remark.startswith("# ports and cores are those of this machine")
    assert here.startswith("env ")
    assert there.startswith(f"ssh -p 2222 -T -o BatchMode=yes {B} 'cd /")
    assert " && exec env " in there
