"""Jobs that can be started, and those that are refused."""

import shlex

import pytest

from tfdist.cluster import Task
from tfdist.launch.job import RESERVED_VARIABLES, Job, Limits, ProcessSpec

TRUE = ("/bin/true",)


def test_the_number_of_processes():
    assert Job(TRUE, size=3).process_count == 3
    assert Job(TRUE, workers=3, ps=2).process_count == 6
    assert Job(TRUE, workers=3, ps=2, evaluator=True).process_count == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"needs size \(-np\), or both .*Received: none of them\. .*--workers 2 --p",
        ),
        ({"workers": 2}, r"both workers and ps .*Received: workers=2\. For a chief"),
        (
            {"size": 2, "workers": 2, "ps": 1},
            r"\(-np\) does not go with .*Received: size=2, workers=2, ps=1\. Give -np",
        ),
        (
            {"size": 2, "evaluator": True},
            r"\(--evaluator\) is for a job .*Received: evaluator, size=2\. Give --w",
        ),
        ({"size": 0}, r"size \(-np\) must be at least 1\. Received: size=0\. Give a"),
        (
            {"workers": 2, "ps": -1},
            r"ps \(--ps\) must be at least 1\. Received: ps=-1\. Give a positive",
        ),
        (
            {"size": 1, "threads_per_process": 0},
            r"\(--threads-per-process\) must be at least 1\. Received: threads_per_pro",
        ),
        (
            {"workers": 2, "ps": 1, "collective": "horovod"},
            r"joins ranks .*'horovod', workers=2, ps=1\. Give -np instead",
        ),
        (
            {"size": 1, "bind_to": "c"},
            r"'core' or 'none'\. Received: bind_to='c'\. Leave",
        ),
        (
            {"size": 1, "collective": "mpi"},
            r"'horovod'\. Received: collective='mpi'\. Leave it out",
        ),
        ({"size": 1, "env": {"A=B": "1"}}, r"Received: the name 'A=B'\. Write it as"),
        (
            {"size": 1, "env": {"TF_CONFIG": "1"}},
            r"Received: TF_CONFIG=1\. Leave TF_CONFIG out",
        ),
    ],
)
def test_jobs_that_cannot_be_started_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Job(TRUE, **options)


def test_variables_that_identify_a_process_are_reserved():
    names = {"TF_CONFIG", "TFDIST_RANK", "TFDIST_TASK", "HOROVOD_RANK"}
    assert names <= set(RESERVED_VARIABLES)
    assert "HOROVOD_CYCLE_TIME" not in RESERVED_VARIABLES


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan")])
def test_limits_that_no_run_can_keep_are_refused(seconds):
    Limits().check()
    message = f"^timeout_seconds must be positive. Received: timeout_seconds={seconds}."
    with pytest.raises(ValueError, match=message):
        Limits(timeout_seconds=seconds).check()
    message = "^restarts must not be negative. Received: restarts=-1. Use 0"
    with pytest.raises(ValueError, match=message):
        Limits(worker_restarts=-1).check()


@pytest.mark.parametrize(
    ("task", "host", "tag", "log_name"),
    [
        (None, None, "1", "rank.1.log"),
        (None, "node2", "1 node2", "rank.1.log"),
        (Task("chief", 0), None, "chief", "chief.log"),
        (Task("ps", 0), None, "ps 0", "ps.0.log"),
    ],
)
def test_the_names_of_a_process(task, host, tag, log_name):
    spec = ProcessSpec(1, TRUE, {}, task=task, host=host)

    assert (spec.tag, spec.log_name) == (tag, log_name)


def test_the_shell_line_keeps_every_character():
    argv = ("/bin/echo", "a  'b'", "$HOME")
    spec = ProcessSpec(0, argv, {"X": 'a "b"\n'}, (2, 3), unset=("A", "B"))

    words = ["env", "-u", "A", "-u", "B", 'X=a "b"\n', "taskset", "-c", "2,3", *argv]
    assert shlex.split(spec.shell_line()) == words
