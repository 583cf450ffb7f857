"""Impossible flags and variables, each with one error in three parts."""

import shlex

import pytest

RUN = [
    ("true", "A job needs size (-np), or both workers and ps (--workers, --ps)."),
    ("-np", "argument -np: expected one argument"),
    ("-np 0 true", "size (-np) must be from 1 to 65535."),
    ("-np 1.5 true", "argument -np: invalid int value: '1.5'"),
    ("-np 2", "The command is missing."),
    ("-np 2 missing.py", "The script to run does not exist."),
    ("-np 2 ''", "The program to run does not exist, or is not executable."),
    ("-np 2 -m no_such_module", "The module to run does not exist."),
    (
        "-np 2 --workers 1 true",
        "size (-np) does not go with workers and ps (--workers, --ps).",
    ),
    (
        "--ps 1 true",
        "A job needs size (-np), or both workers and ps (--workers, --ps).",
    ),
    ("--workers 1 --ps 0 true", "ps (--ps) must be from 1 to 65535."),
    (
        "--workers 1 --ps 1 --collective horovod true",
        "collective='horovod' joins ranks that are all alike.",
    ),
    ("-np 2 --bind-to cores true", "argument --bind-to: invalid choice: 'cores'"),
    (
        "-np 2 --bind-to core -np 4096 true",
        "bind_to='core' needs a core for each process.",
    ),
    (
        "-np 2 --threads-per-process 0 true",
        "threads_per_process (--threads-per-process) must be from 1 to",
    ),
    ("-np 2 --env X true", "argument --env: it must be a name and a value."),
    ("-np 2 --env =1 true", "env must map names of variables to their values."),
    (
        "-np 2 --env TFDIST_RANK=1 true",
        "env must not set what the launcher sets for each process.",
    ),
    ("-np 2 --timeout nan true", "argument --timeout: it must be a positive number "),
    (
        "-np 2 --restarts 1 true",
        "--restarts has no effect on ranks, none of which can be missed.",
    ),
    ("--workers 1 --ps 1 --restarts -1 true", "restarts must not be negative."),
    ("-np 2 --min-np 1 true", "min_size (--min-np) has no effect without restarts."),
    (
        "-np 2 --max-restarts 1 --min-np 3 true",
        "min_size (--min-np) must be at least 1 and at most size (-np).",
    ),
    (
        "-np 2 --fusion-threshold-mb 4 true",
        "Horovod's tuning has no effect on other collectives.",
    ),
    (
        "-np 2 --collective horovod --cycle-time-ms inf true",
        "--cycle-time-ms must be from 0 to 1,000,000.",
    ),
    (
        "-np 2 --collective horovod --timeline-mark-cycles true",
        "--timeline-mark-cycles has no effect without --timeline.",
    ),
    (
        "-np 2 --collective horovod --env HOROVOD_CYCLE_TIME=2 --cycle-time-ms 3 true",
        "HOROVOD_CYCLE_TIME is set twice.",
    ),
    (
        "-np 2 --output-dir /dev/null/x true",
        "--output-dir must be a folder or a name for a new one.",
    ),
    ("-np 2 --evaluator true", "evaluator (--evaluator) is for a job with parameter"),
    ("-np 2 --ssh rsh true", "--ssh has no effect without hosts."),
    ("-H a,b --isolate-network true", "--isolate-network is for processes on one"),
    ("-H a:2 -np 3 true", "The hosts have too few slots for the processes of the job."),
    ("-H a,localhost true", "A host among several needs a name by which the others"),
    ("-H a --hostfile b true", "argument --hostfile: not allowed with "),
    ("--hostfile no_such_file true", "--hostfile must be a file"),
    ("--hostfile /dev/zero true", "--hostfile must be a file"),
    ("-np 99999999 true", "size (-np) must be from 1 to 65535."),
    ("-np 2 --timeout inf true", "argument --timeout: it must be a positive number "),
    (
        "-np 2 --collective horovod --fusion-threshold-mb 99999999999 true",
        "--fusion-threshold-mb must be from 0 to 1,000,000.",
    ),
    ("-H a,b --collective horovod true", "--collective horovod joins processes of"),
    (
        "-H a,b --collective mpi true",
        "--collective mpi joins processes of this machine",
    ),
]
BUILD = [
    ("--index 0", "There are no addresses to build from."),
    (
        "--workers a:1,b:1",
        "--index must say which task it is for, as TF_CONFIG differs in each process.",
    ),
    (
        "--workers a:1,b:1 --index one",
        "argument --index: it must be a number from 0, or",
    ),
    (
        "--workers a:1,b:1 --index 2",
        "task.index must be from 0 to 1, as cluster.worker has no more addresses.",
    ),
    ("--workers a:1,b --index 0", "address 2 of --workers has no port."),
    (
        "--chief c:1,d:1 --workers a:1 --index 0",
        "address 1 of --chief must be one bare",
    ),
    (
        "--workers a:1 --ps a:1 --index 0",
        "cluster.ps[0] has the same address as cluster.worker[0].",
    ),
    ("--workers a:1 --index all --task ps", "--task must be a job that has addresses."),
    ("--workers a:1 --index 0 --port 2222", "Ports are for -H and --hostfile, as "),
    ("-H a:2 --port x --index 0", "argument --port/--port-range: it must be a port "),
    ("-H a:2 --port 65535 --index 0", "--port has too few ports for the workers of "),
    ("-H a --workers b:1 --index 0", "argument --workers/--worker: not allowed with"),
    ("--nodes 0 --to sbatch", "--nodes must be from 1 to 65535."),
    ("--nodes 2 --ntasks-per-node 99999 --to lsf", "--ntasks-per-node must be from 1"),
    ("--nodes 2 -H a --to pbs", "--nodes stands in place of the names of hosts."),
    ("--nodes 2 --index 0", "--nodes has no effect with --to json."),
    ("--nodes 1 --to pbs --gpus -1", "--gpus must be from 1 to 65535."),
    ("--nodes 1 --to pbs --cpus 0", "--cpus must be from 1 to 65535."),
    ("--workers a:1 --index 0 --to yaml", "argument --to: invalid choice: 'yaml'"),
]
CONFIG = [
    ("", "the following arguments are required: ACTION"),
    ("check", "There is no TF_CONFIG to check."),
    ("check nofile", "FILE must be a file that can be read."),
    ("check x\x00", "FILE must be a file that can be read."),
    ("check a b", "there is no option b."),
    ("check --jsn", "there is no option --jsn. Did you mean --json?"),
    ("check --resolve=1", "argument --resolve: ignored explicit argument '1'"),
]
ROWS = [
    *((["run", *shlex.split(given)], problem) for given, problem in RUN),
    *((["config", "build", *shlex.split(given)], problem) for given, problem in BUILD),
    *((["config", *shlex.split(given)], problem) for given, problem in CONFIG),
]


@pytest.mark.parametrize(("words", "problem"), ROWS)
def test_flags(words, problem, refusal):
    assert refusal(*words).startswith(problem)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"TF_CONFIG": "[" * 100_000}, "TF_CONFIG is not valid JSON: its brackets are"),
        (
            {"OMPI_COMM_WORLD_RANK": "1"},
            "OMPI_COMM_WORLD_SIZE must be a whole number, ",
        ),
    ],
)
def test_variables(variables, problem, refusal):
    assert refusal("config", "show", **variables).startswith(problem)
