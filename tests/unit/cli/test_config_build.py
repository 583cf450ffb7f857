"""`tfdist config build`: TF_CONFIG from every kind of option, and back."""

import json
import random
import shlex

import pytest
import yaml

from tfdist.cluster import Cluster, Task
from tfdist.cluster.tf_config import dumps, loads
from tfdist_cli.main import main


@pytest.fixture
def build(capsys):
    """Return what builds, and gives the lines that it prints."""

    def build(*options):
        assert main(["config", "build", *options]) == 0
        return capsys.readouterr().out.splitlines()

    return build


def test_one_task(build):
    (line,) = build("--workers", "a:1,b:1", "--index", "1")

    assert line == dumps(Cluster(workers=("a:1", "b:1"), task=Task("worker", 1)))


def test_all_jobs(build):
    options = "--chief c:1 --worker a:1 --workers b:1,d:1 --ps p:1 --ps q:1"
    (line,) = build(*options.split(), "--task", "ps", "--index", "1")

    assert loads(line) == Cluster(
        chief="c:1",
        workers=("a:1", "b:1", "d:1"),
        ps=("p:1", "q:1"),
        task=Task("ps", 1),
    )


def test_hosts_with_slots(build):
    (line,) = build("-H", "a:2,[fe80::1]", "-H", "b", "--index", "3")
    assert loads(line).workers == ("a:2222", "a:2223", "[fe80::1]:2222", "b:2222")

    (line,) = build("-H", "a:2", "--port", "5000", "--index", "0")
    assert loads(line).workers == ("a:5000", "a:5001")


def test_a_line_for_each_task(build):
    lines = build("--chief", "c:1", "-H", "a:2", "--ps", "p:1", "--index", "all")

    assert lines[::2] == ["# chief 0", "# worker 0", "# worker 1", "# ps 0"]
    assert [f"# {loads(line).task}" for line in lines[1::2]] == lines[::2]


def test_a_line_for_each_task_of_a_job(build):
    options = ["--chief", "c:1", "-H", "a:2", "--task", "worker", "--index", "all"]

    assert build(*options)[::2] == ["# worker 0", "# worker 1"]


@pytest.mark.parametrize(
    ("to", "start"),
    [
        ("json", '{"cluster"'),
        ("env", 'TF_CONFIG=\'{"cluster"'),
        ("shell", 'export TF_CONFIG=\'{"cluster"'),
        ("dotenv", 'TF_CONFIG={"cluster"'),
    ],
)
def test_the_forms(build, to, start):
    (line,) = build("-H", "a,b", "--index", "0", "--to", to)

    assert line.startswith(start)


def test_the_whole_job(build):
    lines = build("-H", "a:2,b:2", "--to", "sbatch", "--name", "mine")

    assert lines[1] == "#SBATCH --job-name=mine"
    assert lines[-1] == "srun --distribution=block python train.py"


def test_the_whole_job_in_containers(build):
    lines = build(
        *("--chief", "c:1", "--workers", "a:1", "--ps", "p:1", "--to", "compose"),
        *("--image", "registry/train:1", "--command", "python main.py --epochs 3"),
    )

    assert yaml.safe_load("\n".join(lines))["services"]["ps-0"]["command"] == [
        "python",
        "main.py",
        "--epochs",
        "3",
    ]


def test_an_evaluator_that_is_not_listed(build):
    (line,) = build("--workers", "a:1,b:1", "--task", "evaluator", "--index", "0")

    assert loads(line).task == Task("evaluator", 0)


def test_what_is_doubtful_is_told_on_stderr(capsys):
    assert main(["config", "build", "--workers", "a:40000", "--index", "0"]) == 0

    out, err = capsys.readouterr()
    assert loads(out).size == 1
    assert [line[:50] for line in err.splitlines()] == [
        "tfdist config build: warning: cluster has a single",
        "tfdist config build: warning: cluster.worker[0] ha",
    ]


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


def read_back(line, to):
    """Return the value that a line gives to TF_CONFIG."""
    if to in ("env", "shell"):
        line = shlex.split(line)[-1]
    return line.removeprefix("TF_CONFIG=")


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("to", ["json", "env", "shell", "dotenv"])
def test_a_cluster_survives_the_round_trip(build, seed, to):
    cluster = random_cluster(random.Random(seed))
    options = ["--task", cluster.task.type, "--index", str(cluster.task.index)]
    for job, addresses in cluster.jobs.items():
        option = "--workers" if job == "worker" else f"--{job}"
        options += [option, ",".join(addresses)]

    (line,) = build(*options, "--to", to)

    assert loads(read_back(line, to)) == cluster


@pytest.mark.parametrize("seed", range(20))
def test_all_tasks_of_a_cluster_survive_the_round_trip(build, seed):
    cluster = random_cluster(random.Random(seed))
    options = []
    for job, addresses in cluster.jobs.items():
        for address in addresses:
            options += [f"--{job}", address]

    lines = build(*options, "--index", "all")[1::2]

    assert {loads(line).task for line in lines} >= {cluster.task}
    assert {json.dumps(loads(line).jobs) for line in lines} == {
        json.dumps(cluster.jobs)
    }


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("", "There are no addresses to build from. Received: none of --chief, --wor"),
        ("--index 0", "There are no addresses to build from. Received: none of"),
        ("--workers a:1", "--index must say which task it is for, as TF_CONFIG"),
        (
            "--workers a:1 --index x",
            "--index must be a number from 0, or all. Received: x. Count from 0",
        ),
        (
            "--workers a:1 --index=-1",
            "--index must be a number from 0, or all. Received: -1. Count from 0",
        ),
        (
            "--workers a:1,b:1 --index 2",
            "task.index must be from 0 to 1, as cluster.worker has no more addresses. "
            "Received: index=2. Count from 0",
        ),
        (
            "--workers a:1 --task chief --index 0",
            "task.type names a job that the cluster does not have. Received: "
            "type='chief', the jobs worker. Add the addresses",
        ),
        (
            "--workers a:1 --task master --index 0",
            "task.type must be one of chief, worker, ps, evaluator. Received: "
            "type='master'. Use 'chief'",
        ),
        (
            "--workers a:1 --task master --index all",
            "task.type must be one of chief, worker, ps, evaluator. Received: ",
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
        (
            "--workers a:1,,b:1 --index 0",
            "address 2 of --workers has no port. Received: ''. Write it as",
        ),
        (
            "--workers a:1 --ps p:0 --index 0",
            "address 1 of --ps must end in a port from 1 to 65535. Received: 'p:0'.",
        ),
        (
            "--workers a:1,A:1 --index 0",
            "cluster.worker[1] has the same address as cluster.worker[0]. Received: ",
        ),
        (
            "--workers localhost:1,a:1 --index 0",
            "cluster.worker[0] is on localhost, where processes on other hosts cannot",
        ),
        (
            "--ps p:1 --task ps --index 0",
            "cluster has neither a chief nor a worker, so no process would train. Rec",
        ),
        (
            "--chief a:1,b:1 --index 0",
            "--chief must be a single address. Received: a:1,b:1. Make the others",
        ),
        (
            "--workers c:1 --evaluator a:1 --evaluator b:1 --index 0",
            "--evaluator must be a single address. Received: a:1,b:1. Keep one",
        ),
        (
            "--workers a:1 --port 1 --index 0",
            "--port has no effect without -H or --hostfile, as addresses have ports of "
            "their own. Received: --port 1. Leave it out",
        ),
        (
            "--workers a:1 -H b --index 0",
            "-H and --workers both give the workers. Received: -H b and "
            "--workers a:1. Leave one",
        ),
        (
            "-H a --port http --index 0",
            "argument --port: it must be a port from 1 to 65535. Received: http. Write",
        ),
        ("-H a --port 0 --index 0", "port must be from 1 to 65535. Received: port=0."),
        ("-H a:0 --index 0", "entry 1 of -H must be a host, or a host and its slot"),
        ("-H a,a --index 0", "entry 2 of -H repeats a host."),
        (
            "-H a --index 0 --to yaml",
            "--to must be one of json, env, shell, dotenv, hostfile, sbatch, "
            "kubernetes, tfjob, mpijob, compose. Received: --to yaml. Use",
        ),
        (
            "-H a --index 0 --to compose --image x",
            "--index has no effect with --to compose, as it is for one task. "
            "Received: --index 0. Leave it out",
        ),
        (
            "-H a --task worker --to hostfile",
            "--task has no effect with --to hostfile, as it is for one task. Received:",
        ),
        (
            "-H a --index 0 --name x",
            "--name has no effect with --to json, as it is not a part of it. "
            "Received: --name x. Leave it out",
        ),
        ("-H a --to hostfile --command x", "--command has no effect with --to hostf"),
        ("-H a --to sbatch --image x", "--image has no effect with --to sbatch, as"),
        (
            "-H a --to mpijob",
            "--image must name the image of the containers",
        ),
        ("-H a --to sbatch --name X", "--name must begin with a small letter and hav"),
        ("--to sbatch", "There are no addresses to build from. Received: none of"),
        (
            "--ps p:1 --to tfjob --image x",
            "cluster has neither a chief nor a worker, so no process would train. Rec",
        ),
    ],
)
def test_what_is_refused(options, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", *options.split()])

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tfdist config build: error: {error}")
    assert "Received: " in err
