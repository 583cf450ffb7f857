"""`tfdist config build --from`: the job from the variables of a launcher."""

import io
import sys

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.tf_config import dumps, loads
from tfdist_cli.main import main

SAGEMAKER = 'SM_HOSTS=["a", "b"]\nSM_CURRENT_HOST=b\n'
ON_A_AND_B = Cluster(workers=("a:2222", "b:2222"), task=Task("worker", 1))


def of_horovod(rank, size, local_rank, local_size):
    return (
        f"HOROVOD_RANK={rank}\nHOROVOD_SIZE={size}\n"
        f"HOROVOD_LOCAL_RANK={local_rank}\nHOROVOD_LOCAL_SIZE={local_size}\n"
    )


def of_torchrun(rank, size, local_rank, local_size):
    return (
        f"TORCHELASTIC_RUN_ID=none\nRANK={rank}\nWORLD_SIZE={size}\n"
        f"LOCAL_RANK={local_rank}\nLOCAL_WORLD_SIZE={local_size}\n"
    )


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Return what writes a file of variables in the working directory."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "vars").write_text


def build(capsys, *options):
    assert main(["config", "build", *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_cluster_from_a_file(capsys, file):
    file(SAGEMAKER)

    (line,) = build(capsys, "--from", "sagemaker", "--variables", "vars")
    assert loads(line) == ON_A_AND_B

    options = "--from auto --variables vars --index 0 --to dotenv"
    (line,) = build(capsys, *options.split())
    assert loads(line.removeprefix("TF_CONFIG=")).task == Task("worker", 0)


def test_a_cluster_from_the_standard_input(capsys, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(SAGEMAKER.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)

    (line,) = build(capsys, "--from", "sagemaker", "--variables", "-")

    assert loads(line) == ON_A_AND_B


def test_a_cluster_from_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", dumps(ON_A_AND_B))

    (line,) = build(capsys, "--from", "tfjob")
    assert loads(line) == ON_A_AND_B

    assert build(capsys, "--from", "auto", "--to", "hostfile") == [
        "a slots=1",
        "b slots=1",
    ]


def test_all_tasks_of_a_launcher(capsys, file):
    file(SAGEMAKER)
    options = ["--from", "sagemaker", "--variables", "vars", "--index", "all"]

    assert build(capsys, *options)[::2] == ["# worker 0", "# worker 1"]


def test_a_rank_with_hosts(capsys, file):
    file(of_horovod(2, 3, 0, 1))
    options = ["--from", "horovod", "--variables", "vars", "-H", "a:2,b"]

    (line,) = build(capsys, *options)

    assert loads(line) == Cluster(
        workers=("a:2222", "a:2223", "b:2222"), task=Task("worker", 2)
    )


def test_a_rank_with_a_chief(capsys, file):
    file(of_horovod(1, 3, 0, 2))
    options = "--from horovod --variables vars --chief c:1 -H a:2 --ps p:1"

    (line,) = build(capsys, *options.split())

    assert loads(line).task == Task("worker", 0)


def test_torchrun_may_hide_the_local_rank(capsys, file):
    file(of_torchrun(1, 2, 0, 2))

    (line,) = build(
        capsys, "--from", "torchrun", "--variables", "vars", "--workers", "a:1,a:2"
    )

    assert loads(line).rank == 1


@pytest.mark.parametrize(
    ("variables", "options", "error"),
    [
        (
            "",
            "--variables vars",
            "--variables has no effect without --from. Received: --variables vars. N",
        ),
        (
            "",
            "--from mpi --variables vars",
            "--from must be one of slurm, openmpi, mpich, horovod, torchrun, kubernete",
        ),
        (
            "",
            "--from slurm --variables vars",
            "--from slurm finds no job of several processes in --variables vars. "
            "Received: 0 variables, without those of such a job",
        ),
        (
            "A=1\nhello",
            "--from slurm --variables vars",
            "line 2 of --variables vars must be a variable and its value. Received: ",
        ),
        (
            "",
            "--from slurm --variables none",
            "--variables must be a file that can be read. Received: none (No such file "
            "or directory). Give the name of one that holds variables, as printenv",
        ),
        (
            SAGEMAKER,
            "--from sagemaker --variables vars -H a,b --ps p:1",
            "--from sagemaker gives all processes of the job. "
            "Received: also --ps, -H. Leave one",
        ),
        (
            SAGEMAKER,
            "--from sagemaker --variables vars --port 1",
            "--port has no effect without -H or --hostfile, as addresses have ports",
        ),
        (
            SAGEMAKER,
            "--from sagemaker --variables vars --index 2",
            "task.index must be from 0 to 1, as cluster.worker has no more addresses.",
        ),
        (
            SAGEMAKER,
            "--from sagemaker --variables vars --task worker",
            "--index must say which task it is for",
        ),
        (
            of_horovod(1, 4, 1, 2),
            "--from horovod --variables vars",
            "--from horovod gives numbers and no addresses. Received: rank 1 of 4 from "
            "horovodrun, and none of -H, --hostfile and --workers. Add the hosts",
        ),
        (
            of_horovod(1, 4, 1, 2),
            "--from horovod --variables vars -H a:2,b",
            "--from horovod and the addresses give different numbers of processes. "
            "Received: rank 1 of 4 from horovodrun, and 3 that train by the addresses",
        ),
        # Dealt out in turn, as by `mpirun --map-by node`.
        (
            of_horovod(1, 4, 0, 2),
            "--from horovod --variables vars -H a:2,b:2",
            "--from horovod and the addresses put rank 1 on different hosts. Received: "
            "local rank 0 of 2 from horovodrun, and 1 of 2 by the addresses. Give the",
        ),
        (
            of_torchrun(0, 3, 0, 1),
            "--from torchrun --variables vars -H a:2,b",
            "--from torchrun and the addresses put rank 0 on different hosts. Receive",
        ),
    ],
)
def test_what_is_refused(variables, options, error, file, capsys):
    file(variables)
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", *options.split()])

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tfdist config build: error: {error}")
    assert "Received: " in err
