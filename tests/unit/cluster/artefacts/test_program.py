import re

import pytest

from tfdist.cluster.artefacts.program import Program


def test_what_it_is_without_being_told():
    program = Program()

    assert (program.name, program.words, program.image) == (
        "train",
        ["python", "train.py"],
        "",
    )


@pytest.mark.parametrize("name", ["a", "a1", "my-job-2", "a" * 50])
def test_names(name):
    assert Program(name=name).name == name


NAME = "--name must begin with a small letter and have at most 50 small letters, digits"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"name": ""},
            f"{NAME} and hyphens. Received: --name ''. Use one such as trai",
        ),
        ({"name": "Train"}, NAME),
        ({"name": "1a"}, NAME),
        ({"name": "a-"}, NAME),
        ({"name": "a" * 51}, NAME),
        ({"name": "a\n"}, NAME),
        (
            {"image": "a b"},
            "--image must be a container image. Received: --image 'a b'. Write it as",
        ),
        ({"image": "a\0"}, "--image must be a container image. Received: --image 'a"),
        (
            {"command": ""},
            "--command must be a line that a shell can run. Received: --command ''. Cl",
        ),
        (
            {"command": "a 'b"},
            "--command must be a line that a shell can run. Received",
        ),
        (
            {"command": "a\nb"},
            "--command must be a line that a shell can run. Received",
        ),
    ],
)
def test_what_is_refused(parts, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Program(**parts)
