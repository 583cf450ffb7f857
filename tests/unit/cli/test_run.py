"""Arguments, errors, dry runs and reports of `tfdist run`; nothing is started."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.cluster.hosts import HostSlots
from tfdist.launching.hosts import Hosts
from tfdist.launching.job import Limits
from tfdist.launching.output import Output
from tfdist.launching.restarts import Attempt, Restarts
from tfdist.launching.result import Exit, RunResult
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


@pytest.fixture(autouse=True)
def launcher(folder, monkeypatch):
    """Be in a folder with a script, and start nothing."""
    (folder / "train.py").touch()
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
def test_files_of_metrics_that_cannot_be_written(option, file, message, refusal):
    assert message in refusal("run", "-np", "1", option, file, "train.py")


def test_every_option_arrives(launcher):
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
    assert (launcher.job.bind_to, launcher.job.threads_per_process) == ("core", 3)
    assert launcher.job.env == {"A": "1", "B": "x=y", "C": ""}


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
        ("train.py -np 2", "Received: none of them. .* before .*: tfdist run -np 2 "),
        ("my.ipynb", "Received: my.ipynb. .* my.py: jupyter nbconvert --to script my"),
        (
            "-np 2 --cycle-time-ms 0 --autotune train.py",
            "--cycle-time-ms, --autotune. ",
        ),
        ("-np 2 --timeline no/a.json train.py", "--timeline must be a file in"),
    ],
)
def test_errors_before_anything_starts(launcher, arguments, error, refusal):
    message = refusal("run", *arguments.split())

    assert re.match(f"tfdist run: error: .*{error}", message)
    assert launcher.job is None


@pytest.mark.parametrize(
    ("options", "remark"),
    [
        (
            "--max-restarts 3 --min-np 1",
            "# after a failure: all of them again, up to 3 times, with -np 1 at least",
        ),
        (
            f"-H {A}:3,{B}:2 --max-restarts 1",
            f"# spare slots for restarts: {A}:1, {B}:2",
        ),
    ],
)
def test_a_dry_run_tells_what_a_restart_would_do(options, remark, launcher, printed):
    lines = printed("run", "-np", "2", *options.split(), "--dry-run", "true")

    assert remark in lines.splitlines()
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


@pytest.fixture
def pod(monkeypatch):
    """Be in the second of two pods."""
    monkeypatch.setenv("TFDIST_JOB_NAME", "train")
    monkeypatch.setenv("TFDIST_SERVICE", "peers")
    monkeypatch.setenv("TFDIST_WORKERS", "2")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")


@pytest.mark.parametrize("place", ["here", "a host", "a pod"])
def test_a_dry_run_pins_ranks_near_their_gpus(place, printed, request, monkeypatch):
    machine = "tfdist.launching.machine"
    monkeypatch.setattr(f"{machine}.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(f"{machine}.cores_of_gpus", lambda cores: ((2, 3), (0, 1)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if place == "a pod":
        request.getfixturevalue("pod")
    options = ["-H", f"{A}:2"] if place == "a host" else ["-np", "2"]
    options += ["--collective", "tensorflow"]

    lines = printed("run", *options, "--dry-run", "train.py").splitlines()[-2:]
    assert ["taskset -c 2,3 " in lines[0], "taskset -c 0,1 " in lines[1]] == [True] * 2


def test_a_job_with_parameter_servers(launcher):
    main(["run", "--workers", "2", "--ps", "1", "--restarts", "0", "train.py"])

    assert (launcher.job.workers, launcher.job.ps) == (2, 1)
    assert launcher.options["limits"].worker_restarts == 0


def test_a_horovod_job(launcher, tmp_path):
    line = (
        "-np 2 --collective horovod --fusion-threshold-mb 2 --cycle-time-ms 0.5 "
        "--cache-capacity 7 --timeline-filename a.json --timeline-mark-cycles "
        "--autotune --autotune-log-file b.csv --log-level INFO --env A=1 "
        "--stall-check-warning-time-seconds 3 --stall-check-shutdown-time-seconds 4"
    )

    main(["run", *line.split(), "train.py"])

    assert launcher.job.collective == "horovod"
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


def test_on_the_only_node_of_a_job_np_counts(launcher, slurm, monkeypatch):
    """A job with one task and many cores may well run several processes."""
    slurm("n8", "1")
    # The shell of `salloc` may be elsewhere.
    main(["run", "-np", "4", "true"])
    assert launcher.hosts.slots == (HostSlots("n8", 4),)
    main(["run", "--workers", "2", "--ps", "1", "true"])
    assert launcher.hosts.slots == (HostSlots("n8", 4),)
    monkeypatch.setenv("SLURMD_NODENAME", "n8")

    main(["run", "-np", "4", "true"])
    assert (launcher.job.size, launcher.hosts) == (4, None)
    main(["run", "true"])
    assert (launcher.job.size, launcher.hosts.slots) == (1, (HostSlots("n8", 1),))


def test_a_job_within_each_task_of_another_is_refused(launcher, monkeypatch, refusal):
    """Each pod of a TFJob would train with its own ranks, without an error."""
    addresses = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", '
    monkeypatch.setenv("TF_CONFIG", addresses + '"index": 1}}')

    for options in [], ["-np", "4"]:
        error = refusal("run", *options, "true")
        assert "worker: 2 in the environment, of which this is worker 1" in error
    monkeypatch.setenv("TF_CONFIG", "{}")
    main(["run", "-np", "4", "true"])
    assert launcher.job.size == 4


@pytest.mark.parametrize(("options", "size"), [([], 1), (["-np", "4"], 4)])
@pytest.mark.usefixtures("pod")
def test_a_pod_starts_its_part(options, size, launcher, capsys):
    assert main(["run", *options, "true"]) == 0
    assert main(["run", *options, "--dry-run", "true"]) == 0

    assert launcher.job.size == size
    assert launcher.hosts.cluster.address == "train-1.peers:2222"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == size
    assert f"TFDIST_RANK={size} " in lines[0]


def test_a_dry_run_prints_what_reaches_the_hosts(printed):
    line = f"run --dry-run -H {A},{B} --ssh"
    remark, *there = printed(*line.split(), "ssh -p 2222", "true").splitlines()

    assert remark.startswith("# ports and cores are those of this machine")
    for host, words in zip((A, B), there, strict=True):
        assert words.startswith(f"ssh -p 2222 -T -o BatchMode=yes -- {host} 'cd /")
        assert " && exec env " in words
    here = "run --dry-run -H localhost --collective tensorflow true"
    assert printed(*here.split()).splitlines()[1].startswith("env ")


def test_ctrl_c_before_a_process_has_started(launcher, capsys):
    launcher.result = KeyboardInterrupt()

    assert main(["run", "-H", A, "true"]) == 130
    assert capsys.readouterr().err == "tfdist run: interrupted\n"


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


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "--strategy parameter_server -np 2 train.py",
            "parameter_server needs --workers and --ps. Received: --strategy parameter_"
            "server without parameter servers. Give --workers and --ps, or another",
        ),
        (
            "--strategy all_reduce --workers 1 --ps 1 train.py",
            "--strategy all_reduce needs -np. Received: --strategy all_reduce with "
            "parameter servers. Give -np, or another strategy.",
        ),
    ],
)
def test_a_strategy_that_does_not_fit_is_refused(line, error, refusal):
    assert error in refusal("run", *line.split())
