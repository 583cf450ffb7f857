"""Jobs that can be started, and those that are refused."""

import shlex

import pytest

from tfdist.cluster import Task
from tfdist.launching.job import ProcessSpec

TRUE = ("/bin/true",)


@pytest.mark.parametrize(
    ("task", "host", "tag", "log_stem"),
    [
        (None, None, "1", "rank.1"),
        (None, "node2", "1 node2", "rank.1"),
        (Task("chief", 0), None, "chief", "chief"),
        (Task("ps", 0), None, "ps 0", "ps.0"),
    ],
)
def test_the_names_of_a_process(task, host, tag, log_stem):
    spec = ProcessSpec(1, TRUE, {}, task=task, host=host)

    assert (spec.tag, spec.log_stem) == (tag, log_stem)


def test_the_shell_line_keeps_every_character():
    argv = ("/bin/echo", "a  'b'", "$HOME")
    spec = ProcessSpec(0, argv, {"X": 'a "b"\n'}, (2, 3), unset=("A", "B"))

    words = ["env", "-u", "A", "-u", "B", 'X=a "b"\n', "taskset", "-c", "2,3", *argv]
    assert shlex.split(spec.shell_line()) == words
