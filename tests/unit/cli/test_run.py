"""Arguments, errors, dry runs and reports of `tfdist run`; nothing is started."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.cluster.hosts import HostSlots
from tfdist.launch import (
    Attempt,
    Exit,
    Hosts,
    Limits,
    Output,
    Restarts,
    RunResult,
    plan_here,
)
from tfdist_cli import run as run_module
from tfdist_cli.main import main
from tfdist_cli.run_report import end_lines, print_lines, restart_lines

DONE = RunResult((Exit(0, 0, 1.0),))
FAILED = RunResult((Exit(0, 3, 1.0, ("one", "two")),), "failed", failed_rank=0)
MAIN = "import sys; from tfdist_cli.main import main; sys.exit(main())"
# 203.0.113.0/24 is for examples.
A, B = "203.0.113.1", "203.0.113.2"


class FakeLauncher:
    """Remembers what it is asked to run, and ends as told."""

    def __init__(self):
        self.result = DONE
        self.saved_step = None
        self.job = self.restarts = None
        self.options = {}

    def __call__(self, job, restarts, **options):
        self.job, self.restarts, self.options = job, restarts, options
        if isinstance(self.result, BaseException):
            raise self.result
        return (Attempt(self.result, (0,), self.saved_step),)

    @property
    def hosts(self):
        return self.options["hosts"]

    @property
    def specs(self):
        return plan_here(self.job)


@pytest.fixture(autouse=True)
def launcher(tmp_path, monkeypatch):
    """Be in a folder with a script, and start nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    launcher = FakeLauncher()
    monkeypatch.setattr(run_module, "run_job", launcher)
    return launcher


def test_the_shortest_call(launcher):
    assert main(["run", "-np", "2", "train.py"]) == 0

    assert launcher.job.size == 2
    assert launcher.job.command == (sys.executable, "train.py")
    assert launcher.restarts == Restarts(0)
    launcher.options.pop("on_restart")
    assert launcher.options == {
        "output": Output(console=True, tag=True, directory=None),
        "limits": Limits(timeout_seconds=None, worker_restarts=3),
        "hosts": None,
    }


def test_files_of_metrics_are_named_to_all_processes(launcher, tmp_path, capsys):
    files = [tmp_path / "epochs.json", tmp_path / "run.prom"]
    options = ["--metrics-json", "epochs.json", "--metrics-file", str(files[1])]

    assert main(["run", "-np", "1", *options, "train.py"]) == 0

    assert launcher.job.env == {
        "TFDIST_METRICS_JSON": str(files[0]),
        "TFDIST_METRICS_FILE": str(files[1]),
    }
    assert capsys.readouterr().err == (
        f"tfdist run: nothing was written to {files[0]} and {files[1]}: no process has "
        "called fit with the callback that does it. Add it: "
        "model.fit(..., callbacks=[tfdist.callbacks.Throughput()])\n"
    )
    launcher.result = FAILED
    assert main(["run", "-np", "1", *options, "train.py"]) == 3
    assert "nothing was written" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--metrics-json", "none/a", "--metrics-json must be a file in a folder"),
        ("--metrics-file", ".", "--metrics-file must be a file that can be written"),
        ("--metrics-file", "/dev/null", "must be a file that can be replaced by a new"),
    ],
)
def test_files_of_metrics_that_cannot_be_written(option, file, message, capsys):
    with pytest.raises(SystemExit):
        main(["run", "-np", "1", option, file, "train.py"])

    assert message in capsys.readouterr().err


def test_every_option_arrives(launcher, monkeypatch):
    monkeypatch.setattr("tfdist.launch.machine.available_cores", lambda: (0, 1, 2, 3))
    line = "-np 2 --output-dir a/b --no-tag-output --timeout 1.5 --bind-to core "
    line += "--log-format json --output chief "
    line += "--threads-per-process 3 --max-restarts 5 --min-np 1 "
    line += "--env A=1 --env B=x=y --env C= train.py"

    main(["run", *line.split()])

    assert launcher.options["output"] == Output(
        tag=False,
        is_of_chief=True,
        directory=Path("a/b"),
        is_json=True,
    )
    assert Path("a/b").is_dir()
    assert launcher.options["limits"] == Limits(timeout_seconds=1.5)
    assert launcher.restarts == Restarts(5, min_size=1)
    spec = launcher.specs[1]
    assert spec.cores == (2, 3)
    assert spec.env["TF_NUM_INTRAOP_THREADS"] == "3"
    assert [spec.env[name] for name in "ABC"] == ["1", "x=y", ""]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py", "-np", "7", "--dry-run"], ("train.py", "-np", "7", "--dry-run")),
        (["train.py", "a b", "", "-h"], ("train.py", "a b", "", "-h")),
        (["--", "train.py", "--", "-x"], ("train.py", "--", "-x")),
        (["-m", "json.tool", "-m"], ("-m", "json.tool", "-m")),
    ],
)
def test_all_after_the_command_belongs_to_it(launcher, words, command):
    main(["run", "-np", "2", *words])

    assert launcher.job.command == (sys.executable, *command)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            "train.py -np 2",
            "A job needs size (-np), or both workers and ps (--workers, --ps). "
            "Received: none of them. Say it before the program: tfdist run -np 2 ",
        ),
        (
            "--ps 1 train.py",
            "Received: ps=1. Give both, as in --workers 2 --ps 1.\n",
        ),
        (
            "my.ipynb",
            "A notebook cannot be started as a program. Received: my.ipynb. Make a "
            "script of it, and start my.py: jupyter nbconvert --to script my.ipynb\n",
        ),
        ("-np 2 --env A train.py", "Received: A. Write it as A=VALUE"),
        ("-np 2 --output-dir train.py/x train.py", "Received: train.py/x (Not a dir"),
        (
            "-np 2 --cycle-time-ms 0 --autotune train.py",
            "Horovod's tuning has no effect on other collectives. Received: "
            "--cycle-time-ms, --autotune. Add --collective horovod",
        ),
        (
            "-np 2 --timeline no/a.json train.py",
            "it must be a file in a folder that can be written. Received: 'no/a.json'.",
        ),
    ],
)
def test_errors_before_anything_starts(launcher, arguments, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["run", *arguments.split()])

    message = capsys.readouterr().err
    assert message.startswith("tfdist run: error: ")
    assert error in message
    assert launcher.job is None


def test_a_dry_run_prints_a_line_for_each_process(launcher, capsys):
    line = "run -np 2 --max-restarts 3 --min-np 1 --dry-run train.py"
    assert main([*line.split(), "a b"]) == 0

    remark, *lines = capsys.readouterr().out.splitlines()
    assert remark == (
        "# after a failure: all of them again, up to 3 times, with -np 1 at least"
    )
    for rank, words in enumerate(map(shlex.split, lines)):
        assert words[-2:] == ["train.py", "a b"]
        assert {f"TFDIST_RANK={rank}", f"TFDIST_SLOT={rank}"} < {*words}
    assert launcher.job is None


def test_the_reader_of_a_dry_run_may_leave(tmp_path):
    line = "run -np 500 --collective tensorflow --bind-to none --dry-run true | head -1"
    call = f"{shlex.quote(sys.executable)} -c {shlex.quote(MAIN)} {line}"

    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", call],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "TFDIST_RANK=0 " in done.stdout
    assert (done.stdout.count("\n"), done.returncode, done.stderr) == (1, 0, "")


@pytest.mark.parametrize("options", [["-np", "2"], ["-H", f"{A}:2"]])
def test_a_dry_run_pins_ranks_near_their_gpus(options, capsys, monkeypatch):
    place = "tfdist.launch.machine"
    monkeypatch.setattr(f"{place}.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(f"{place}.cores_of_gpus", lambda cores: ((2, 3), (0, 1)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    options += ["--collective", "tensorflow"]

    assert main(["run", *options, "--dry-run", "train.py"]) == 0

    lines = capsys.readouterr().out.splitlines()[-2:]
    assert ["taskset -c 2,3 " in lines[0], "taskset -c 0,1 " in lines[1]] == [True] * 2


def test_a_job_with_parameter_servers(launcher):
    main(["run", "--workers", "2", "--ps", "1", "--restarts", "0", "train.py"])

    tags = [spec.tag for spec in launcher.specs]
    assert tags == ["chief", "worker 0", "worker 1", "ps 0"]
    assert launcher.options["limits"].worker_restarts == 0


def test_a_horovod_job(launcher, tmp_path):
    line = (
        "-np 2 --collective horovod --fusion-threshold-mb 2 --cycle-time-ms 0.5 "
        "--cache-capacity 7 --timeline-filename a.json --timeline-mark-cycles "
        "--autotune --autotune-log-file b.csv --log-level INFO --env A=1 "
        "--stall-check-warning-time-seconds 3 --stall-check-shutdown-time-seconds 4"
    )

    main(["run", *line.split(), "train.py"])

    assert launcher.specs[1].env["HOROVOD_RANK"] == "1"
    assert launcher.job.env == {
        "A": "1",
        "HOROVOD_FUSION_THRESHOLD": str(2 * 2**20),
        "HOROVOD_CYCLE_TIME": "0.5",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_TIMELINE": str(tmp_path / "a.json"),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(tmp_path / "b.csv"),
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4",
    }


def test_horovod_must_be_installed(monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "horovod", None)

    with pytest.raises(SystemExit, match="2"):
        main(["run", "-np", "1", "--collective", "horovod", "true"])

    assert capsys.readouterr().err.startswith(
        "tfdist run: error: A Horovod job needs Horovod, which is not installed. "
        "Received: collective='horovod'. Run `tfdist horovod install`."
    )


def test_hosts_and_their_options(launcher):
    assert main(["run", "-H", f"{A}:2", "-H", B, "true"]) == 0
    assert launcher.job.size == 3
    assert launcher.hosts == Hosts((HostSlots(A, 2), HostSlots(B, 1)))

    options = ["--ssh", "ssh -p 2222", "--python", "/env/python", "--start-timeout=7"]
    main(["run", "-np", "2", "-H", f"{A}:2,{B}", *options, "true"])
    assert launcher.job.size == 2
    assert (launcher.hosts.ssh, launcher.hosts.python) == ("ssh -p 2222", "/env/python")
    assert launcher.hosts.start_timeout_seconds == 7
    assert launcher.job.env == {"TFDIST_START_TIMEOUT": "7"}


@pytest.fixture
def slurm(monkeypatch):
    """Return the function that sets Slurm's variables of an allocation."""

    def slurm(nodes, tasks):
        monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)

    return slurm


@pytest.mark.parametrize(
    ("options", "size"), [([], 5), (["-np", "4"], 4), (["--ssh", "ssh -q"], 5)]
)
def test_hosts_of_slurm(options, size, launcher, slurm, capsys):
    slurm("n[8-10]", "2(x2),1")

    assert main(["run", *options, "true"]) == 0

    assert launcher.job.size == size
    expected = (HostSlots("n8", 2), HostSlots("n9", 2), HostSlots("n10", 1))
    assert launcher.hosts.slots == expected
    assert launcher.hosts.ssh == (options[1] if "--ssh" in options else "srun")
    said = capsys.readouterr().err
    assert said == "tfdist run: Slurm has given n8:2, n9:2, n10:1\n"
    main(["run", "-H", A, "true"])
    assert launcher.hosts.slots == (HostSlots(A, 1),)


def test_on_the_only_node_of_a_job_np_counts(launcher, slurm):
    """A job with one task and many cores may well run several processes."""
    slurm("n8", "1")

    main(["run", "-np", "4", "true"])
    assert (launcher.job.size, launcher.hosts) == (4, None)
    main(["run", "true"])
    assert (launcher.job.size, launcher.hosts.slots) == (1, (HostSlots("n8", 1),))


@pytest.mark.parametrize(("options", "size"), [([], 1), (["-np", "4"], 4)])
def test_a_pod_starts_its_part(options, size, launcher, monkeypatch, capsys):
    monkeypatch.setenv("TFDIST_JOB_NAME", "train")
    monkeypatch.setenv("TFDIST_SERVICE", "peers")
    monkeypatch.setenv("TFDIST_WORKERS", "2")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")

    assert main(["run", *options, "true"]) == 0
    assert main(["run", *options, "--dry-run", "true"]) == 0

    assert launcher.job.size == size
    assert launcher.hosts.cluster.address == "train-1.peers:2222"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == size
    assert f"TFDIST_RANK={size} " in lines[0]


def test_a_dry_run_prints_what_reaches_the_hosts(capsys, monkeypatch):
    monkeypatch.setattr("tfdist.launch.runner.is_this_machine", lambda host: host == A)
    line = f"run --dry-run -H {A},{B} --ssh"

    assert main([*line.split(), "ssh -p 2222", "true"]) == 0

    remark, here, there = capsys.readouterr().out.splitlines()
    assert remark.startswith("# ports and cores are those of this machine")
    assert here.startswith("env ")
    assert there.startswith(f"ssh -p 2222 -T -o BatchMode=yes -- {B} 'cd /")
    assert " && exec env " in there


def test_a_dry_run_names_spare_slots(capsys):
    line = f"run --dry-run -np 2 -H {A}:3,{B}:2 --max-restarts 1 true"

    assert main(line.split()) == 0

    assert f"# spare slots for restarts: {A}:1, {B}:2\n" in capsys.readouterr().out


def test_ctrl_c_before_a_process_has_started(launcher):
    launcher.result = KeyboardInterrupt()

    assert main(["run", "-H", A, "true"]) == 130


def test_the_failure_is_reported_and_its_exit_code_returned(launcher, capsys):
    launcher.result = FAILED

    assert main(["run", "-np", "1", "train.py"]) == 3

    assert capsys.readouterr().err.splitlines() == [
        "tfdist run: the last lines of rank 0:",
        "    one",
        "    two",
        "tfdist run: rank 0 failed with exit code 3 after 1.0 s.",
    ]


@pytest.fixture
def said(capsys):
    """Return the function that reports the end of a job of some starts."""

    def said(*results):
        attempts = [Attempt(result, (0,)) for result in results]
        print_lines(end_lines(Restarts(2), attempts), is_json=False)
        return capsys.readouterr().err.splitlines()

    return said


def test_long_lines_lose_their_middle_and_ended_ranks_are_named(said):
    exits = (Exit(0, -15, 2.0), Exit(1, 3, 1.0, ("x" * 3000 + ". Do this.",)))

    assert said(RunResult(exits, "failed", failed_rank=1, ended_ranks=(0,))) == [
        "tfdist run: the last lines of rank 1:",
        f"    {'x' * 100} ... {'x' * 90}. Do this.",
        "tfdist run: rank 1 failed with exit code 3 after 1.0 s; "
        "rank 0 was still running and was ended.",
    ]


@pytest.mark.parametrize(
    ("error", "is_hinted"),
    [
        ("bdb.BdbQuit", True),
        ("EOFError: EOF when reading a line", True),
        ("EOFError: Ran out of input", False),
    ],
)
def test_a_rank_that_wanted_a_terminal_gets_a_hint(said, error, is_hinted):
    exits = (Exit(0, 1, 1.0, (error,)),)

    *_, last = said(RunResult(exits, "failed", failed_rank=0))

    hint = "tfdist run: breakpoint() and input() need a terminal, which no rank has."
    assert last.startswith(hint) == is_hinted


def test_restarts_are_reported_when_they_happen(capfd):
    lines = restart_lines(FAILED, "restart 1 of 2: rank 0 failed.")
    print_lines(lines, is_json=False)
    assert capfd.readouterr().err.splitlines()[-2:] == [
        "    two",
        "tfdist run: restart 1 of 2: rank 0 failed.",
    ]

    print_lines(lines, is_json=True)
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    texts = ["tfdist run: the last lines of rank 0:", "    one", "    two"]
    texts.append("tfdist run: restart 1 of 2: rank 0 failed.")
    assert [one["text"] for one in objects] == texts
    assert {(one["rank"], one["stream"]) for one in objects} == {(None, "launcher")}


def test_the_end_of_a_job_has_the_number_of_restarts(said):
    first, total = said(FAILED, DONE)
    assert first.startswith("tfdist run: restart 1 of 2: rank 0 failed with exit code")
    assert total.startswith("tfdist run: 1 of 2 restarts used.")
