"""Places in a job that no launcher gives: MPI, Horovod, torchrun, `tfdist run`."""

import json

import pytest

# The launchers with the variables for rank, size, local rank and local size.
LAUNCHERS = {
    "Open MPI": (
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MPICH": ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "Horovod": (
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
    ),
    "torchrun": ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
}
RANK, SIZE, LOCAL_RANK, LOCAL_SIZE = range(1, 5)
# Which of the four is changed and how, and the problem, in which {} is the variable.
PLACES = [
    (RANK, None, "{} must be a whole number"),
    (SIZE, None, "{} must be a whole number"),
    (LOCAL_RANK, None, "{} must be a whole number"),
    (LOCAL_SIZE, None, "{} must be a whole number"),
    (RANK, "x", "{} must be a whole number"),
    (RANK, "-1", "{} must be a whole number"),
    (LOCAL_RANK, "1.0", "{} must be a whole number"),
    (SIZE, "\u0662", "{} must be a whole number"),
    (SIZE, "9" * 5000, "{} must be a whole number"),
    (RANK, "2", "rank must be from 0 to size - 1."),
    (SIZE, "0", "rank must be from 0 to size - 1."),
    (LOCAL_RANK, "2", "local_rank must be from 0 to local_size - 1."),
    (LOCAL_SIZE, "3", "local_size must not be greater than size, as it counts only"),
]

SECOND = {"type": "worker", "index": 1}
TF_CONFIG = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": SECOND})
OURS = {
    "TFDIST_RUN_ID": "5f",
    "TF_CONFIG": TF_CONFIG,
    "TFDIST_RANK": "1",
    "TFDIST_SIZE": "2",
}
# What is changed in OURS.
RUNS = [
    (
        {"TF_CONFIG": None},
        "TF_CONFIG is not set any more, though `tfdist run` gave one",
    ),
    ({"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON at line 1, column 2: "),
    ({"TF_CONFIG": "{}"}, "TF_CONFIG is not the one that `tfdist run` gave"),
    ({"TFDIST_RANK": None}, "TFDIST_RANK must be a whole number, as `tfdist run` sets"),
    ({"TFDIST_RANK": "x"}, "TFDIST_RANK must be a whole number, as `tfdist run` sets"),
    ({"TFDIST_SIZE": None}, "TFDIST_SIZE must be a whole number, as `tfdist run` sets"),
    ({"TFDIST_RANK": "0"}, "TF_CONFIG is not the one that `tfdist run` gave"),
    ({"TFDIST_SIZE": "3"}, "TF_CONFIG is not the one that `tfdist run` gave"),
    ({"TFDIST_TASK": "ps 0"}, "TF_CONFIG is not the one that `tfdist run` gave"),
]
# All variables.
SERVERS = [
    (
        {"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"},
        "PMIX_RANK tells the rank of this process, but nothing tells how many there",
    ),
    (
        {"PMIX_RANK": "x", "PMIX_NAMESPACE": "x"},
        "PMIX_RANK must be a whole number, as `prterun` sets it.",
    ),
]


def place(launcher, role, value):
    """Return the variables of the second of two processes with one of them changed."""
    names = LAUNCHERS[launcher][1:]
    variables = dict(zip(names, ("1", "2", "1", "2"), strict=True))
    variables |= {LAUNCHERS[launcher][role]: value}
    if launcher == "torchrun":
        variables["TORCHELASTIC_RUN_ID"] = "none"
    return variables


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("role", "value", "problem"), PLACES)
def test_places(launcher, role, value, problem, refusal):
    message = refusal("config", "show", **place(launcher, role, value))

    assert message.startswith(problem.format(LAUNCHERS[launcher][role]))
    assert LAUNCHERS[launcher][0] in message


@pytest.mark.parametrize(
    ("variables", "problem"),
    [*((OURS | changes, problem) for changes, problem in RUNS), *SERVERS],
)
def test_other_variables(variables, problem, refusal):
    assert refusal("config", "show", **variables).startswith(problem)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_two_places_are_refused_in_the_same_words(launcher, refusal):
    messages = [
        refusal("config", "show", **place(launcher, role, value))
        for role, value, _ in PLACES
    ]

    assert len({*messages}) == len(messages)


def test_no_two_others_are_refused_in_the_same_words(refusal):
    rows = [*((OURS | changes) for changes, _ in RUNS), *(row for row, _ in SERVERS)]
    messages = [refusal("config", "show", **variables) for variables in rows]

    assert len({*messages}) == len(messages)
