"""A real Slurm on this machine: what its tasks know, and the recipe for it."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from slurm_cluster import slurm_cluster

ROOT = Path(__file__).parents[2]
SHOW = "import sys; from tfdist_cli.main import main; sys.exit(main(sys.argv[1:]))"

pytestmark = [
    pytest.mark.new_processes,
    pytest.mark.slow,
    pytest.mark.requires("srun", "slurmctld", "slurmd", "munged"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A cluster with one node, of which Slurm gives four cores."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def shown(slurm, tmp_path):
    """Return a function that gives what `tfdist config show` says in each task."""

    def show(tasks):
        words = ["config", "show", "--explain", "--json"]
        slurm.run(
            *("srun", f"--ntasks={tasks}", f"--output={tmp_path}/task.%t"),
            *(sys.executable, "-c", SHOW, *words),
            cwd=ROOT,
        )
        files = [tmp_path / f"task.{task}" for task in range(tasks)]
        return [json.loads(file.read_text()) for file in files]

    return show


def test_each_task_knows_its_place(shown):
    first, second = shown(2)

    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["size"] == second["size"] == 2
    assert first["resolver"] == second["resolver"] == "slurm"
    addresses = [
        [(task["host"], task["port"]) for task in facts["tasks"]]
        for facts in (first, second)
    ]
    assert addresses[0] == addresses[1]
    (host, port), (_, next_port) = addresses[0]
    assert host == "127.0.0.1"
    assert next_port == port + 1


def test_a_single_task_is_alone(shown):
    (alone,) = shown(1)

    assert (alone["rank"], alone["size"], alone["tasks"]) == (0, 1, [])


# As on another node of the job, of which this cluster has none.
ELSEWHERE = """
import sys
import tfdist.launching.hosts
from tfdist_cli.main import main
if sys.argv.pop(1) == "by srun":
    tfdist.launching.hosts.is_this_machine = lambda host: False
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("how", ["here", "by srun"])
def test_tfdist_run_takes_what_slurm_has_given(slurm, tmp_path, how):
    (tmp_path / "run.py").write_text(ELSEWHERE)
    show = "echo $TFDIST_RANK in step $SLURM_STEP_ID; exit $((TFDIST_RANK * 3))"
    words = [sys.executable, "run.py", how, "run", "sh", "-c", show]
    log = tmp_path / "job.log"

    job = f"cd {tmp_path} && {shlex.join(words)}; echo exit code $?"
    slurm.run(
        *("sbatch", "--wait", "--ntasks=2", f"--output={log}"),
        *("--wrap", job),
        cwd=ROOT,
    )
    printed = log.read_text()

    assert "tfdist run: Slurm has given 127.0.0.1:2\n" in printed
    step = {"here": "", "by srun": "0"}[how]
    assert set(re.findall(r"^\[(.*)\] (\d) in step ?(.*)$", printed, re.MULTILINE)) == {
        ("0 127.0.0.1", "0", step),
        ("1 127.0.0.1", "1", step),
    }
    assert "tfdist run: rank 1 on 127.0.0.1 failed with exit code 3 after" in printed
    assert printed.endswith("exit code 3\n")


def test_the_recipe_trains_two_tasks_together(slurm, tmp_path, monkeypatch):
    monkeypatch.setitem(slurm.env, "PYTHON", sys.executable)
    log = tmp_path / "job.log"

    slurm.run(
        *("sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1"),
        f"--output={log}",
        *(ROOT / "examples" / "slurm" / "train.sbatch", "--epochs", 2),
        cwd=ROOT,
        timeout=1200,
    )
    printed = log.read_text().replace("\r", "\n")

    digest = r"^0: all 2 ranks hold identical weights: sha256 [0-9a-f]{64}$"
    assert len(re.findall(digest, printed, re.MULTILINE)) == 1, printed
    assert len(re.findall(r"^0: test accuracy: ", printed, re.MULTILINE)) == 1
    assert not re.search(r"^1: .*accuracy", printed, re.MULTILINE)


@pytest.fixture
def built(slurm, tmp_path):
    """Return a function that builds the script of a job of two tasks."""

    def build(name, program):
        (tmp_path / f"{name}.py").write_text(program)
        words = ["config", "build", "--nodes=1", "--ntasks-per-node=2", "--to=sbatch"]
        words += ["--name", name, f"--command={sys.executable} {name}.py"]
        script = tmp_path / f"{name}.sbatch"
        script.write_text(slurm.run(sys.executable, "-c", SHOW, *words, cwd=ROOT))
        return script

    return build


# Each job is in use of its ports until the other one has begun, too.
TOGETHER = """
import time
from pathlib import Path
import tfdist
strategy = tfdist.strategies.AllReduceStrategy()
Path(__file__).with_suffix(".begun").touch()
while len([*Path.cwd().glob("*.begun")]) < 2:
    time.sleep(0.1)
address = tfdist.cluster.detect().address
print("rank", tfdist.rank(), "of", strategy.num_replicas_in_sync, "at", address)
"""


def test_two_built_jobs_run_on_one_node_at_once(slurm, built, tmp_path):
    one, two = built("one", TOGETHER), built("two", TOGETHER)

    slurm.run("bash", "-c", f"sbatch -W {one} & sbatch -W {two}; wait", cwd=tmp_path)

    logs = {log.name[:3]: log.read_text() for log in tmp_path.glob("*.log")}
    said = r"^(\d): rank \1 of 2 at (.*)$"
    found = {name: re.findall(said, log, re.MULTILINE) for name, log in logs.items()}
    ranks = {name: sorted(dict(each)) for name, each in found.items()}
    assert ranks == {"one": ["0", "1"], "two": ["0", "1"]}, logs
    assert len({address for each in found.values() for _, address in each}) == 4


def test_a_task_that_fails_ends_its_built_job(slurm, built, tmp_path):
    program = (
        "import os, pathlib, sys, time\n"
        'task, is_there = os.environ["SLURM_PROCID"], pathlib.Path("is_there")\n'
        'print("task", task, flush=True)\n'
        'if task == "0":\n'
        "    is_there.touch()\n"
        "    time.sleep(600)\n"
        "while not is_there.exists():\n"
        "    time.sleep(0.05)\n"
        "sys.exit(3)\n"
    )
    script = built("fails", program)

    said = slurm.run("bash", "-c", f"sbatch -W {script} || echo code $?", cwd=tmp_path)

    # That of the task that was ended.
    assert said.endswith("code 143\n")
    (log,) = tmp_path.glob("fails-*.log")
    assert {"0: task 0", "1: task 1"} <= {*log.read_text().splitlines()}
    assert "task 1: Exited with exit code 3\n" in log.read_text()


def test_mpi_joins_the_tasks_of_srun_with_pmix(slurm, tmp_path):
    (tmp_path / "train.py").write_text(
        "import tfdist\n"
        "strategy = tfdist.strategies.AllReduceStrategy()\n"
        'print("rank", tfdist.rank(), "of", strategy.num_replicas_in_sync)\n'
    )
    printed = slurm.run(
        *("srun", "--mpi=pmix", "--ntasks=2", sys.executable, tmp_path / "train.py"),
        cwd=tmp_path,
    )

    assert "rank 0 of 2" in printed
    assert "rank 1 of 2" in printed
    assert (
        "tfdist: srun has started 2 processes; the collectives of MPI, which mpi4py "
        "has found, join them." in printed
    )
