"""Flags of `tfdist run` that make no sense, or none together."""

import shlex

import pytest

RUN = [
    (
        "true",
        "-np is missing: give the number of processes, as in -np 2, or hosts with -H",
    ),
    ("-np", "argument -np: expected one argument"),
    ("-np 0 true", "size (-np) must be at least 1."),
    ("-np -1 true", "size (-np) must be at least 1."),
    ("-np two true", "argument -np: invalid int value: 'two'"),
    ("-np 1.5 true", "argument -np: invalid int value: '1.5'"),
    ("-np 2", "The command is missing."),
    ("-np 2 missing.py", "The script to run does not exist."),
    (
        "-np 2 no_such_program",
        "The program to run does not exist",
    ),
    ("-np 2 -m no_such_module", "The module to run does not exist."),
    (
        "-np 2 --workers 1 true",
        "size (-np) does not go with workers and ps (--workers, --ps).",
    ),
    (
        "--workers 2 true",
        "A job needs size (-np), or both workers and ps (--workers, --ps).",
    ),
    (
        "--ps 1 true",
        "A job needs size (-np), or both workers and ps (--workers, --ps).",
    ),
    ("--workers 0 --ps 1 true", "workers (--workers) must be at least 1."),
    ("--workers 1 --ps 0 true", "ps (--ps) must be at least 1."),
    (
        "--workers 1 --ps 1 --collective horovod true",
        "collective='horovod' joins ranks that are all alike.",
    ),
    ("-np 2 --bind-to cores true", "argument --bind-to: invalid choice: 'cores'"),
    (
        "-np 2 --threads-per-process 0 true",
        "threads_per_process (--threads-per-process) must be at least 1.",
    ),
    (
        "-np 2 --threads-per-process x true",
        "argument --threads-per-process: invalid int value: 'x'",
    ),
    ("-np 2 --collective mpi true", "argument --collective: invalid choice: 'mpi'"),
    ("-np 2 --env X true", "argument --env: it must be a name and a value."),
    ("-np 2 --env =1 true", "env must map names of variables to their values."),
    (
        "-np 2 --env TF_CONFIG={} true",
        "env must not set what the launcher sets for each process.",
    ),
    (
        "-np 2 --env TFDIST_RANK=1 true",
        "env must not set what the launcher sets for each process.",
    ),
    ("-np 2 --timeout x true", "argument --timeout: invalid float value: 'x'"),
    ("-np 2 --timeout 0 true", "timeout_seconds must be positive."),
    ("-np 2 --timeout -1 true", "timeout_seconds must be positive."),
    (
        "-np 2 --restarts 1 true",
        "--restarts has no effect on ranks, none of which can be missed.",
    ),
    ("--workers 1 --ps 1 --restarts -1 true", "restarts must not be negative."),
    (
        "-np 2 --max-restarts -1 true",
        "max_restarts (--max-restarts) must not be negative.",
    ),
    ("-np 2 --max-restarts x true", "argument --max-restarts: invalid int value: 'x'"),
    ("-np 2 --min-np 1 true", "min_size (--min-np) has no effect without restarts."),
    (
        "-np 2 --max-restarts 1 --min-np 3 true",
        "min_size (--min-np) must be at least 1 and at most size (-np).",
    ),
    (
        "-np 2 --max-restarts 1 --min-np 0 true",
        "min_size (--min-np) must be at least 1 and at most size (-np).",
    ),
    (
        "--workers 1 --ps 1 --max-restarts 1 --min-np 1 true",
        "min_size (--min-np) is for ranks that are all alike.",
    ),
    (
        "-np 2 --fusion-threshold-mb 4 true",
        "Horovod's tuning has no effect on TensorFlow's collectives.",
    ),
    (
        "-np 2 --collective horovod --fusion-threshold-mb -1 true",
        "--fusion-threshold-mb must not be negative, nor infinite.",
    ),
    (
        "-np 2 --collective horovod --cycle-time-ms inf true",
        "--cycle-time-ms must not be negative, nor infinite.",
    ),
    (
        "-np 2 --collective horovod --timeline-mark-cycles true",
        "--timeline-mark-cycles has no effect without --timeline.",
    ),
    (
        "-np 2 --collective horovod --autotune-log-file /no/such/x true",
        "argument --autotune-log-file: it must be a file in a folder that can be",
    ),
    (
        "-np 2 --collective horovod --log-level loud true",
        "argument --log-level: invalid choice: 'loud'",
    ),
    (
        "-np 2 --output-dir /dev/null/x true",
        "--output-dir must be a folder or a name for a new one.",
    ),
    (
        "-np 2 --time-out 3 true",
        "there is no option --time-out. Did you mean --timeout?",
    ),
    (
        "-np 2 --bind-to core -np 4096 true",
        "bind_to='core' needs a core for each process.",
    ),
    ("-np 2 ''", "The program to run does not exist"),
    ("-np 2 --timout=3 true", "there is no option --timout. Did you mean --timeout?"),
    (
        "-np 2 --collective horovod --env HOROVOD_CYCLE_TIME=2 --cycle-time-ms 3 true",
        "HOROVOD_CYCLE_TIME is set twice.",
    ),
    ("-np 2 --timeout nan true", "timeout_seconds must be positive."),
    ("-np 2 --evaluator true", "evaluator (--evaluator) is for a job with parameter"),
    ("-np 2 --ssh rsh true", "--ssh has no effect without hosts."),
    ("-np 2 --python /x true", "--python has no effect without hosts."),
    ("-np 2 --start-timeout 0 true", "--start-timeout must be a positive number of"),
    ("-np 2 --start-timeout inf true", "--start-timeout must be a positive number of"),
    ("-np 2 --start-timeout x true", "argument --start-timeout: invalid float value:"),
    ("-H a:2 -np 3 true", "The hosts have too few slots for the processes of the job."),
    ("-H a,localhost true", "A host among several needs a name by which the others"),
    ("-H a, true", "entry 2 of -H is empty."),
    ("-H a --hostfile b true", "-H and --hostfile both give the hosts."),
    ("--hostfile no_such_file true", "--hostfile must be a file"),
    (
        "-H a,b --collective horovod true",
        "--collective horovod starts its processes",
    ),
    (
        "-H a:2,b:2 --max-restarts 1 --min-np 2 true",
        "--min-np is for the places of one machine.",
    ),
]
ROWS = [(["run", *shlex.split(given)], problem) for given, problem in RUN]


@pytest.mark.parametrize(("words", "problem"), ROWS)
def test_flags(words, problem, refusal):
    assert refusal(*words).startswith(problem)
