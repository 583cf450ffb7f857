"""`tfdist config build`: TF_CONFIG from every kind of option, and back."""

import io
import json
import random
import shlex
import socket
import sys
from pathlib import Path

import pytest
import yaml

from tfdist.cluster import Cluster, Task
from tfdist.cluster.address import split_address
from tfdist.cluster.detect import SOURCES
from tfdist.cluster.templates import JOB_FILES
from tfdist.cluster.tf_config import FORMATS, dumps, loads
from tfdist_cli.main import main

ROOT = Path(__file__).parents[3]
SAGEMAKER = 'SM_HOSTS=["a", "b"]\nSM_CURRENT_HOST=b\n'
ON_A_AND_B = Cluster(workers=("a:2222", "b:2222"), task=Task("worker", 1))


def ranks(rank, size, local_rank, local_size, prefix="HOROVOD_"):
    """Return the variables of a launcher that gives no addresses."""
    return (
        f"{prefix}RANK={rank}\n{prefix or 'WORLD_'}SIZE={size}\n"
        f"{prefix}LOCAL_RANK={local_rank}\n"
        f"{prefix}LOCAL_{'' if prefix else 'WORLD_'}SIZE={local_size}\n"
    )


@pytest.fixture
def build(capsys):
    """Return the function that builds, and returns the printed lines."""

    def build(line):
        assert main(["config", "build", *shlex.split(line)]) == 0
        return capsys.readouterr().out.splitlines()

    return build


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Return the function that writes the file "given" in the working directory."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "given").write_text


@pytest.fixture
def variables_of(monkeypatch):
    """Return the function that sets the variables in lines of NAME=VALUE."""

    def variables_of(lines):
        for line in lines.splitlines():
            monkeypatch.setenv(*line.split("=", 1))

    return variables_of


def test_all_jobs(build):
    options = "--chief c:1 --worker a:1 --workers b:1,d:1 --ps p:1 --ps q:1"
    (line,) = build(f"{options} --task ps --index 1")

    assert loads(line) == Cluster(
        chief="c:1",
        workers=("a:1", "b:1", "d:1"),
        ps=("p:1", "q:1"),
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


def test_a_hostfile_or_the_standard_input(build, file, monkeypatch):
    file("a slots=2\nb slots=1\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))

    (line,) = build("--hostfile given --port 5000 --index 2")
    assert loads(line).workers == ("a:5000", "a:5001", "b:5000")
    (line,) = build("--chief c:1 --hostfile - --task chief --index 0")
    assert loads(line).workers == ("a:2222", "b:2222")


def test_a_line_for_each_task(build):
    lines = build("--chief c:1 -H a:2 --ps p:1 --index all")

    assert lines[::2] == ["# chief 0", "# worker 0", "# worker 1", "# ps 0"]
    assert [f"# {loads(line).task}" for line in lines[1::2]] == lines[::2]
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


def test_a_batch_job_of_any_nodes(build):
    nodes = "--nodes 2 --ntasks-per-node 4 --cpus 8 --gpus 1"

    lines = build(f"{nodes} --to sbatch")
    assert lines[2:6] == [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-task=1",
    ]
    assert [line for line in lines if "nodelist" in line or "PORT" in line] == []
    assert "export TFDIST_PORT_BASE=5000" in build(f"{nodes} --port 5000 --to sbatch")
    lines = build(f"{nodes} --to pbs --command 'python main.py'")
    assert lines[-1] == "tfdist run python main.py"
    assert "#BSUB -n 2" in build("--nodes 2 --to lsf")


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


def random_cluster(chance):
    """Return a cluster, as a task of it sees it."""
    hosts = chance.sample(["a", "node-2", "10.0.0.3", "[fe80::4]", "e.example"], k=5)
    addresses = [f"{host}:{port}" for host in hosts for port in range(2222, 2225)]
    chance.shuffle(addresses)
    counts = {
        "chief": chance.randrange(2),
        "worker": chance.randrange(1, 6),
        "ps": chance.randrange(4),
        "evaluator": chance.randrange(2),
    }
    jobs = {
        job: tuple(addresses.pop() for _ in range(count))
        for job, count in counts.items()
    }
    job = chance.choice([job for job, count in counts.items() if count])
    return Cluster(
        chief=next(iter(jobs["chief"]), None),
        workers=jobs["worker"],
        ps=jobs["ps"],
        evaluators=jobs["evaluator"],
        task=Task(job, chance.randrange(counts[job])),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("to", ["json", "env", "shell", "dotenv"])
def test_a_cluster_survives_the_round_trip(build, seed, to):
    cluster = random_cluster(random.Random(f"{to} {seed}"))
    options = "".join(
        f"--{'workers' if job == 'worker' else job} {','.join(addresses)} "
        for job, addresses in cluster.jobs.items()
    )

    task = f"--task {cluster.task.type} --index {cluster.task.index}"
    (line,) = build(f"{options}{task} --to {to}")
    value = shlex.split(line)[-1] if to in ("env", "shell") else line
    assert loads(value.removeprefix("TF_CONFIG=")) == cluster

    lines = build(f"{options}--index all")[1::2]
    assert {loads(line).task for line in lines} >= {cluster.task}
    assert {json.dumps(loads(line).jobs) for line in lines} == {
        json.dumps(cluster.jobs)
    }


def test_picked_ports_are_free(build):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (line,) = build(f"-H localhost:3 --pick-ports --port {port} --index 0")

    ports = [split_address(address)[1] for address in loads(line).workers]
    assert len(set(ports)) == 3
    assert ports == sorted(ports)
    assert ports[0] > port
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", port))


def test_ports_are_picked_on_this_machine_only(build, monkeypatch):
    machine = "tfdist.launch.machine"
    monkeypatch.setattr(f"{machine}.is_this_machine", lambda host: "h" in host)
    monkeypatch.setattr(f"{machine}._can_bind", lambda host, port: True)

    # This machine may have two names, and has each port once.
    (line,) = build("-H h:2,h2,b:2 --pick-ports --port-range 5000-5002 --index 0")

    assert loads(line).workers == (
        *("h:5000", "h:5001", "h2:5002"),
        *("b:5000", "b:5001"),
    )


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
        (ranks(2, 3, 0, 1), "--from horovod -H a:2,b", Task("worker", 2)),
        (
            ranks(1, 3, 0, 2),
            "--from horovod --chief c:1 -H a:2 --ps p:1",
            Task("worker", 0),
        ),
        # `torchrun --virtual-local-rank` hides the local rank.
        (
            "TORCHELASTIC_RUN_ID=none\n" + ranks(1, 2, 0, 2, prefix=""),
            "--from torchrun --workers a:1,a:2",
            Task("worker", 1),
        ),
        (
            ranks(3, 4, 1, 2, prefix="MV2_COMM_WORLD_"),
            "--from mvapich -H a:2,b:2",
            Task("worker", 3),
        ),
        (
            "PALS_RANKID=2\nPMI_SIZE=4\nPALS_LOCAL_RANKID=0\nPALS_NODES=2\n",
            "--from pals -H a:2,b:2",
            Task("worker", 2),
        ),
    ],
)
def test_a_rank_with_hosts(build, variables_of, variables, options, task):
    variables_of(variables)

    (line,) = build(options)

    assert loads(line).task == task


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("", "There are no addresses to build from. Received: none of --chief, --wor"),
        ("--workers a:1", "--index must say which task it is for, as TF_CONFIG"),
        (
            "--workers a:1 --index=-1",
            "argument --index: it must be a number from 0, or all. Received: -1. Count",
        ),
        (
            "--workers a:1,b:1 --index 2",
            "task.index must be from 0 to 1, as cluster.worker has no more addresses. "
            "Received: index=2. Count from 0",
        ),
        (
            "--workers a:1 --task ps --index all",
            "--task must be a job that has addresses. Received: --task ps --index all. "
            "Add its addresses",
        ),
        (
            "--workers a:1,b --index 0",
            "address 2 of --workers has no port. Received: 'b'. Write it as",
        ),
        ("--chief a:1,b:1 --index 0", "address 1 of --chief "),
        (
            "--workers a:1,A:1 --index 0",
            "cluster.worker[1] has the same address as cluster.worker[0]. Received: ",
        ),
        (
            "--workers a:1 --port 1 --index 0",
            "Ports are for -H and --hostfile, as addresses have ports of their own. "
            "Received: --port. Leave it out",
        ),
        ("--workers a:1 -H b", "argument -H: not allowed with argument --workers"),
        ("--hostfile given -H b", "argument -H: not allowed with argument --hostfile"),
        (
            "-H a --port-range 5001-5000",
            "argument --port/--port-range: it must be a port from 1 to 65535, or two, "
            "the lower one first. Received: 5001-5000. Write",
        ),
        (
            "-H a:3 --index 0 --port-range 5000-5001",
            "--port has too few ports for the workers of a. "
            "Received: 5000-5001, 3 workers. Widen it",
        ),
        (
            "-H a.invalid,b.invalid --pick-ports --index 0",
            "--pick-ports can check the ports of this machine only. "
            "Received: a.invalid, b.invalid, which are others. Leave",
        ),
        ("--hostfile given", "line 1 of --hostfile given must be a host, with slots=N"),
        (
            "--hostfile none",
            "--hostfile must be a file that can be read. Received: none (No such file "
            "or directory). Give the name of one that holds hosts, or -",
        ),
        ("-H a --index 0 --to yaml", "argument --to: invalid choice: 'yaml' (choose"),
        (
            "-H a --index 0 --to compose --image x",
            "--index has no effect with --to compose. Received: --index 0. Leave it",
        ),
        (
            "-H a --index 0 --name x",
            "--name has no effect with --to json. Received: --name x. Leave it out",
        ),
        (
            "--nodes 2 --index 0",
            "--nodes has no effect with --to json. Received: --nodes 2. Leave it out",
        ),
        ("-H a --to pbs --port 5000", "--port has no effect with --to pbs. Received: "),
        ("-H a --to sbatch --pick-ports", "--pick-ports has no effect with --to sbat"),
        ("-H a --to hostfile --gpus 1", "--gpus has no effect with --to hostfile. Rec"),
        (
            "--nodes 2 -H a --to sbatch",
            "--nodes stands in place of the names of hosts. Received: also -H. Leave",
        ),
        (
            "--nodes 2 --from slurm --to sbatch",
            "--nodes stands in place of the names of hosts. Received: also --from. L",
        ),
        (
            "-H a --ntasks-per-node 2 --to lsf",
            "--ntasks-per-node has no effect without --nodes. Received: --ntasks-per-",
        ),
        ("--nodes 0 --to sbatch", "--nodes must be from 1 to 65535. Received: --nodes"),
        (
            "--nodes 2 --ntasks-per-node 3 --port 65534 --to sbatch",
            "--port has too few ports for the workers of each node. Received: 65534-65",
        ),
    ],
)
def test_errors(options, error, file, capsys):
    file("b 2\n")
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", *options.split()])

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tfdist config build: error: {error}")


@pytest.mark.parametrize(
    ("variables", "options", "error"),
    [
        ("", "mpi", "--from must be one of tfdist, tf_config, kubernetes, volcano, "),
        (
            SAGEMAKER,
            "sagemaker -H a,b --ps p:1 --port 1",
            "--from sagemaker gives all processes of the job. "
            "Received: also --ps, -H, --port. Leave one",
        ),
        (
            ranks(1, 4, 1, 2),
            "horovod",
            "--from horovod gives numbers and no addresses. Received: rank 1 of 4 from "
            "horovodrun, and none of -H, --hostfile and --workers. Add the hosts",
        ),
        (
            ranks(1, 4, 1, 2),
            "horovod -H a:2,b",
            "--from horovod and the addresses give different numbers of processes. "
            "Received: rank 1 of 4 from horovodrun, and 3 that train by the addresses",
        ),
        # Dealt out in turn, as by `mpirun --map-by node`.
        (
            ranks(1, 4, 0, 2),
            "horovod -H a:2,b:2",
            "--from horovod and the addresses put rank 1 on different hosts. Received: "
            "local rank 0 of 2 from horovodrun, and 1 of 2 by the addresses. Give the",
        ),
    ],
)
def test_errors_in_variables(variables, options, error, variables_of, capsys):
    variables_of(variables)
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", *f"--from {options}".split()])

    assert capsys.readouterr().err.startswith(f"tfdist config build: error: {error}")
