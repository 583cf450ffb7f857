import os
import subprocess

import pytest

from tfdist.cluster.tf_config_formats import FORMATS, format_tf_config

TEXT = '{"cluster": {"worker": ["o\'neil:1", "$HOME:2"]}}'


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("json", "{}"),
        ("env", "TF_CONFIG='{}'"),
        ("shell", "export TF_CONFIG='{}'"),
        ("dotenv", "TF_CONFIG={}"),
    ],
)
def test_the_forms(to, line):
    assert format_tf_config("{}", to) == line
    assert to in FORMATS


@pytest.mark.parametrize(
    "script", ["{shell}\nprintenv TF_CONFIG", "{env} printenv TF_CONFIG"]
)
def test_a_shell_reads_the_value_as_it_was(script):
    lines = {to: format_tf_config(TEXT, to) for to in FORMATS}
    done = subprocess.run(
        ["sh", "-c", script.format_map(lines)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )

    assert done.stdout == f"{TEXT}\n"


def test_another_form_is_refused():
    message = "^to must be one of json, env, shell, dotenv. Received: to='yaml'. Use"
    with pytest.raises(ValueError, match=message):
        format_tf_config("{}", "yaml")
