"""Commands whose output goes to a file."""

from pathlib import Path

import pytest

from tfdist.horovod_build.errors import BuildError
from tfdist.horovod_build.log import Log, default_path


def test_output_and_errors_are_in_the_file_after_the_command(tmp_path):
    log = Log(tmp_path / "a" / "log")
    seen = []

    assert log.run(["sh", "-c", "echo one; echo two >&2; exit 3"], {}, seen.append) == 3
    assert seen == ["one\n", "two\n"]
    text = "$ sh -c 'echo one; echo two >&2; exit 3'\none\ntwo\n"
    assert log.path.read_text() == text


def test_a_new_log_replaces_the_old(tmp_path):
    path = tmp_path / "log"
    path.write_text("old")

    assert Log(path).path.read_text() == ""


def test_the_failure_is_that_of_the_last_command(tmp_path):
    log = Log(tmp_path / "log")
    log.run(["echo", "ERROR: not so bad"], {})
    log.run(["sh", "-c", "echo a.cc:1:1: error: bad; exit 1"], {})

    assert log.failure().number == 4


def test_what_is_no_text_does_no_harm(tmp_path):
    log = Log(tmp_path / "log")

    assert log.run(["printf", r"\377\n"], {}) == 0
    assert log.failure().number == 2


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(BuildError, match="The log must be .* Choose another: --log F"):
        Log(tmp_path / "file" / "log")


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({}, "/home/user/.cache/tfdist/horovod-install.log"),
        ({"XDG_CACHE_HOME": ""}, "/home/user/.cache/tfdist/horovod-install.log"),
        ({"XDG_CACHE_HOME": "/big"}, "/big/tfdist/horovod-install.log"),
    ],
)
def test_where_it_goes_by_default(env, path):
    assert default_path(env, Path("/home/user")) == Path(path)
