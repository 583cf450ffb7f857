"""`tfdist config build`: TF_CONFIG from every kind of option, and back."""

import re
import shlex
import socket
from pathlib import Path

import pytest
import yaml

from tfdist.cluster import Cluster, Task
from tfdist.cluster.address import split_address
from tfdist.cluster.detect import SOURCES
from tfdist.cluster.job_files import JOB_FILES, Nodes, Program, format_job_file
from tfdist.cluster.tf_config import FORMATS, dumps, loads
from tfdist_cli.main import main

ROOT = Path(__file__).parents[3]
SAGEMAKER = 'SM_HOSTS=["a", "b"]\nSM_CURRENT_HOST=b\n'
ON_A_AND_B = Cluster(workers=("a:2222", "b:2222"), task=Task("worker", 1))


def ranks(rank, size, local_rank, local_size):
    """Return the variables of a launcher that gives no addresses."""
    return (
        f"HOROVOD_RANK={rank}\nHOROVOD_SIZE={size}\n"
        f"HOROVOD_LOCAL_RANK={local_rank}\nHOROVOD_LOCAL_SIZE={local_size}\n"
    )


# `torchrun --virtual-local-rank` hides the local rank.
VIRTUAL = "TORCHELASTIC_RUN_ID=none\nRANK=1\nWORLD_SIZE=2\nLOCAL_RANK=0\n"
VIRTUAL += "LOCAL_WORLD_SIZE=2\n"


@pytest.fixture
def build(printed):
    """Return the function that builds, and returns the printed lines."""
    return lambda line: printed("config", "build", *shlex.split(line)).splitlines()


@pytest.fixture
def variables_of(monkeypatch):
    """Return the function that sets the variables in lines of NAME=VALUE."""

    def variables_of(lines):
        for line in lines.splitlines():
            monkeypatch.setenv(*line.split("=", 1))

    return variables_of


@pytest.mark.parametrize("to", ["json", "env", "shell", "dotenv"])
def test_all_jobs_in_each_form(build, to):
    options = "--chief c:1 --worker a:1 --workers b:2,[fe80::4]:1 --ps p:1 --ps q:1 "
    (line,) = build(f"{options}--evaluator e:1 --task ps --index 1 --to {to}")

    value = shlex.split(line)[-1] if to in ("env", "shell") else line
    assert loads(value.removeprefix("TF_CONFIG=")) == Cluster(
        chief="c:1",
        workers=("a:1", "b:2", "[fe80::4]:1"),
        ps=("p:1", "q:1"),
        evaluators=("e:1",),
        task=Task("ps", 1),
    )


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ("-H a:2,[fe80::1] -H b", ("a:2222", "a:2223", "[fe80::1]:2222", "b:2222")),
        ("-H a:2,b --port 5000", ("a:5000", "a:5001", "b:5000")),
        ("-H a:2,b --port-range 5000-5001", ("a:5000", "a:5001", "b:5000")),
    ],
)
def test_ports_are_counted_up_on_each_host(build, options, workers):
    (line,) = build(f"{options} --index 0")

    assert loads(line).workers == workers


def test_a_hostfile(build, folder):
    (folder / "given").write_text("a slots=2\nb slots=1\n")

    (line,) = build("--chief c:1 --hostfile given --port 5000 --task chief --index 0")
    assert loads(line).workers == ("a:5000", "a:5001", "b:5000")


def test_a_line_for_each_task(build):
    lines = build("--chief c:1 -H a:2 --ps p:1 --index all")

    assert lines[::2] == ["# chief 0", "# worker 0", "# worker 1", "# ps 0"]
    clusters = [loads(line) for line in lines[1::2]]
    assert [f"# {cluster.task}" for cluster in clusters] == lines[::2]
    assert all(cluster.jobs == clusters[0].jobs for cluster in clusters)
    lines = build("--chief c:1 -H a:2 --task worker --index all")
    assert lines[::2] == ["# worker 0", "# worker 1"]


def test_the_whole_job(build):
    lines = build("-H a:2,b:2 --to sbatch --name mine")
    assert lines[1] == "#SBATCH --job-name=mine"
    assert "#SBATCH --nodelist=a,b" in lines
    assert lines[-1] == "    --kill-on-bad-exit=1 python train.py"

    lines = build(
        "--chief c:1 --workers a:1 --ps p:1 --to compose --image registry/train:1 "
        "--command 'python main.py --epochs 3'"
    )
    services = yaml.safe_load("\n".join(lines))["services"]
    assert services["ps-0"]["command"] == ["python", "main.py", "--epochs", "3"]


@pytest.mark.parametrize(
    ("options", "nodes", "form", "program"),
    [
        ("--nodes 2", Nodes(2, 1), "lsf", Program()),
        (
            "--nodes 2 --ntasks-per-node 4 --cpus 8 --gpus 1 --port 5000",
            Nodes(2, 4),
            "sbatch",
            Program(cpus=8, gpus=1, port=5000),
        ),
    ],
)
def test_a_batch_job_of_any_nodes(build, options, nodes, form, program):
    script = format_job_file(nodes, form, program)

    assert build(f"{options} --to {form}") == script.splitlines()


def test_an_evaluator_that_is_not_listed(build):
    (line,) = build("--workers a:1,b:1 --task evaluator --index 0")

    assert loads(line).task == Task("evaluator", 0)


def test_warnings_go_to_stderr(capsys):
    assert main(["config", "build", "--workers", "a:40000", "--index", "0"]) == 0

    out, err = capsys.readouterr()
    assert loads(out).size == 1
    assert [line[:50] for line in err.splitlines()] == [
        "tfdist config build: warning: cluster has a single",
        "tfdist config build: warning: cluster.worker[0] ha",
    ]


def test_the_help_and_the_page_name_every_launcher_and_every_form(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["config", "build", "--help"])

    text = capsys.readouterr().out
    page = (ROOT / "docs" / "config.md").read_text()
    assert [name for name in SOURCES if f"`{name}`" not in page] == []
    assert [name for name in (*SOURCES, *FORMATS, *JOB_FILES) if name not in text] == []


def test_picked_ports_are_free_on_this_machine_and_counted_up_on_others(
    build, monkeypatch
):
    # This machine may have two names, and has each port once.
    monkeypatch.setattr(
        "tfdist.launching.machine.is_this_machine", lambda name: name > "g"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (line,) = build(f"-H h:2,h2,b:2 --pick-ports --port {port} --index 0")

    hosts, ports = zip(*map(split_address, loads(line).workers), strict=True)
    assert hosts == ("h", "h", "h2", "b", "b")
    assert port < ports[0] < ports[1] < ports[2]
    assert ports[3:] == (port, port + 1)
    for picked in ports[:3]:
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", picked))


def test_a_cluster_from_variables(build, variables_of, monkeypatch):
    variables_of(SAGEMAKER)
    (line,) = build("--from sagemaker")
    assert loads(line) == ON_A_AND_B
    (line,) = build("--from auto --index 0 --to dotenv")
    assert loads(line.removeprefix("TF_CONFIG=")).task == Task("worker", 0)

    monkeypatch.setenv("TF_CONFIG", dumps(ON_A_AND_B))
    (line,) = build("--from tfjob")
    assert loads(line) == ON_A_AND_B
    assert build("--from auto --to hostfile") == ["a slots=1", "b slots=1"]


@pytest.mark.parametrize(
    ("variables", "options", "task"),
    [
        (ranks(2, 3, 0, 1), "horovod -H a:2,b", Task("worker", 2)),
        (ranks(1, 3, 0, 2), "horovod --chief c:1 -H a:2 --ps p:1", Task("worker", 0)),
        (VIRTUAL, "torchrun --workers a:1,a:2", Task("worker", 1)),
    ],
)
def test_a_rank_with_hosts(build, variables_of, variables, options, task):
    variables_of(variables)

    (line,) = build(f"--from {options}")

    assert loads(line).task == task


# tests/malformed/test_flags.py has more of them.
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("-H a --port-range 5001-5000", "argument --port/--port-range: .* 5001-5000. "),
        (
            "-H a:3 --index 0 --port-range 5000-5001",
            "--port has too few ports for the workers of a. .* 5000-5001, 3 workers. W",
        ),
        (
            "-H a.invalid,b.invalid --pick-ports --index 0",
            "--pick-ports can .* this machine only. Received: a.invalid, b.invalid, wh",
        ),
        ("--hostfile given", "line 1 of --hostfile given must be a host, with slots=N"),
        (
            "--hostfile none",
            r"--hostfile must be .* none \(No such .*\). Give .* hosts,",
        ),
        (
            "-H a --index 0 --to compose --image x",
            "--index has no effect with --to compose. Received: --index 0. Leave it",
        ),
        ("-H a --index 0 --name x", "--name has no effect .* json. Received: --name x"),
        ("-H a --to pbs --port 5000", "--port has no effect .* pbs. Received: --port."),
        ("-H a --to sbatch --pick-ports", "--pick-ports has no effect with --to sbat"),
        ("-H a --to hostfile --gpus 1", "--gpus has no effect with --to hostfile. Rec"),
        ("--nodes 2 --from slurm --to sbatch", "--nodes stands in .* also --from. Le"),
        ("-H a --ntasks-per-node 2 --to lsf", "--ntasks-per-node has .* without --no"),
        (
            "--nodes 2 --ntasks-per-node 3 --port 65534 --to sbatch",
            "--port has too few ports for the workers of each node. Received: 65534-65",
        ),
    ],
)
def test_errors(options, error, folder, refusal):
    (folder / "given").write_text("b 2\n")

    message = refusal("config", "build", *options.split())
    assert re.match(f"tfdist config build: error: {error}", message)


@pytest.mark.parametrize(
    ("variables", "options", "error"),
    [
        (
            SAGEMAKER,
            "sagemaker -H a,b --ps p:1 --port 1",
            ".* all proc.* --ps, -H, --port",
        ),
        (ranks(1, 4, 1, 2), "horovod", ".* no addresses. Received: rank 1 of 4 from h"),
        (
            ranks(1, 4, 1, 2),
            "horovod -H a:2,b",
            ".* numbers of .* 1 of 4 .* and 3",
        ),
        # Dealt out in turn, as by `mpirun --map-by node`.
        (
            ranks(1, 4, 0, 2),
            "horovod -H a:2,b:2",
            ".* rank 1 on different hosts. Received: local rank 0 of 2 .* 1 of 2 by",
        ),
    ],
)
def test_errors_in_variables(variables, options, error, variables_of, refusal):
    variables_of(variables)

    message = refusal("config", "build", "--from", *options.split())
    assert re.match(f"tfdist config build: error: {error}", message)
