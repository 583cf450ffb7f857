"""`tfdist config build`: what its options take before anything is built."""

import contextlib
import io

import pytest

from tfdist.cluster.detect import SOURCES
from tfdist.cluster.templates import JOB_FILES
from tfdist.cluster.tf_config import FORMATS
from tfdist_cli.main import main


@pytest.fixture(scope="module")
def help_text():
    """Return the help of the command, on one line."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main(["config", "build", "--help"])
    return " ".join(text.getvalue().split())


def test_the_help_names_every_launcher_and_every_form(help_text):
    names = (*SOURCES, *FORMATS, *JOB_FILES)

    assert [name for name in names if name not in help_text] == []


def test_the_help_says_what_checked_means(help_text):
    assert "another program may still take it before the job starts" in help_text


RANGE = "argument --port-range: it must be two ports from 1 to 65535, the lower one "


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--port-range 5000", f"{RANGE}first. Received: 5000. Write it as 2222-2299"),
        ("--port-range 5001-5000", RANGE),
        ("--port-range 0-10", RANGE),
        ("--port-range 1-65536", RANGE),
        ("--port-range a-b", RANGE),
        ("--port-range 1-2-3", RANGE),
        ("--port x", "argument --port: it must be a port from 1 to 65535. Received: x"),
    ],
)
def test_what_is_refused(options, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", "-H", "a", "--index", "0", *options.split()])

    assert capsys.readouterr().err.startswith(f"tfdist config build: error: {error}")
