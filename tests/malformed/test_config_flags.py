"""Flags of `tfdist config` that make no sense, or none together."""

import shlex

import pytest

BUILD = [
    ("--index 0", "There are no addresses to build from."),
    (
        "--workers a:1,b:1",
        "--index must say which task it is for, as TF_CONFIG differs in each process.",
    ),
    ("--workers a:1,b:1 --index", "argument --index: expected one argument"),
    ("--workers a:1,b:1 --index one", "--index must be a number from 0, or all."),
    (
        "--workers a:1,b:1 --index 2",
        "task.index must be from 0 to 1, as cluster.worker has no more addresses.",
    ),
    ("--workers a:1,b --index 0", "address 2 of --workers has no port."),
    ("--workers a,b:1 --index 0", "address 1 of --workers has no port."),
    (
        "--workers a:1,a:1 --index 0",
        "cluster.worker[1] has the same address as cluster.worker[0].",
    ),
    (
        "--workers localhost:1,a:1 --index 0",
        "cluster.worker[0] is on localhost, where processes on other hosts cannot",
    ),
    (
        "--workers 'a:1, b:1' --index 0",
        'address 2 of --workers must be one bare "host:port".',
    ),
    ("--chief c:1,d:1 --workers a:1 --index 0", "--chief must be a single address."),
    ("--chief c --workers a:1 --index 0", "address 1 of --chief has no port."),
    (
        "--evaluator e:1,f:1 --workers a:1 --index 0",
        "--evaluator must be a single address.",
    ),
    (
        "--ps p:1 --index 0 --task ps",
        "cluster has neither a chief nor a worker, so no process would train.",
    ),
    (
        "--ps p:x --workers a:1 --index 0",
        "address 1 of --ps must end in a port from 1 to 65535.",
    ),
    (
        "--workers a:1 --ps a:1 --index 0",
        "cluster.ps[0] has the same address as cluster.worker[0].",
    ),
    (
        "--workers a:1 --index 0 --task boss",
        "task.type must be one of chief, worker, ps, evaluator.",
    ),
    (
        "--workers a:1 --index 0 --task chief",
        "task.type names a job that the cluster does not have.",
    ),
    ("--workers a:1 --index all --task ps", "--task must be a job that has addresses."),
    (
        "--workers a:1 --index 0 --port 2222",
        "--port has no effect without -H or --hostfile, as addresses have ports of ",
    ),
    (
        "--workers a:1 --port x --index 0",
        "argument --port: it must be a port from 1 to 65535.",
    ),
    ("-H a:2 --port 0 --index 0", "port must be from 1 to 65535."),
    ("-H a:2 --port 65535 --index 0", "port leaves too few ports for the slots of a."),
    ("-H a --workers b:1 --index 0", "-H and --workers both give the workers."),
    ("--workers a:1 --index 0 --to yaml", "--to must be one of "),
    (
        "--workers a:1 --index 0 --form json",
        "there is no option --form. Did you mean --from?",
    ),
    ("--workers a:1 b:1 --index 0", "there is no option b:1."),
    ("--workers '' --index 0", "address 1 of --workers has no port."),
]
CONFIG = [
    ("check", "There is no TF_CONFIG to check."),
    ("check nofile", "FILE must be a file that can be read."),
    ("check /", "FILE must be a file that can be read."),
    ("check a b", "there is no option b."),
    ("check --jsn", "there is no option --jsn. Did you mean --json?"),
    ("show --explian", "there is no option --explian. Did you mean --explain?"),
    ("chek", "argument ACTION: invalid choice: 'chek'"),
    ("check x\x00", "FILE must be a file that can be read."),
    ("show x y", "there is no option y."),
    ("check --resolve=1", "argument --resolve: ignored explicit argument '1'"),
    ("", "the following arguments are required: ACTION"),
]
ROWS = [
    *((["config", "build", *shlex.split(given)], problem) for given, problem in BUILD),
    *((["config", *shlex.split(given)], problem) for given, problem in CONFIG),
]


@pytest.mark.parametrize(("words", "problem"), ROWS)
def test_flags(words, problem, refusal):
    assert refusal(*words).startswith(problem)
