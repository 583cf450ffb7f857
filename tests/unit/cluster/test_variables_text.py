import os
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.tf_config import format_tf_config
from tfdist.cluster.variables import parse_variables

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

FUNCTION = "BASH_FUNC_module%%=() {  eval $(modulecmd bash $*)\n}"


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("RANK=1\nSIZE=2\n", {"RANK": "1", "SIZE": "2"}),
        ("RANK=1\r\nSIZE=2\r\n", {"RANK": "1", "SIZE": "2"}),
        ("# a dotenv\n\n  # of mine\nRANK=1", {"RANK": "1"}),
        ("EMPTY=", {"EMPTY": ""}),
        ("A=b=c", {"A": "b=c"}),
        ("A= b # c", {"A": " b # c"}),
        ('HOSTS=["a", "b"]', {"HOSTS": '["a", "b"]'}),
        ("export A='b c'", {"A": "b c"}),
        ('export A="b c"', {"A": "b c"}),
        (f"A=1\n{FUNCTION}\nB=2", {"A": "1", "B": "2"}),
        ("A=1\nA=1", {"A": "1"}),
    ],
)
def test_the_ways_to_write_them(text, variables):
    assert parse_variables(text) == variables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "A=1\nhello",
            "line 2 of variables must be a variable and its value. Received",
        ),
        ("=1", "line 1 of variables must be a variable and its value. Received: '=1'."),
        ("A B=1", "line 1 of variables must be a variable and its value. Received: 'A"),
        ("1A=1", "line 1 of variables must be a variable and its value. Received: '1A"),
        (
            "x" * 100,
            "line 1 of variables must be a variable and its value. Received: 'xxxxx",
        ),
        (
            "A='b",
            "line 1 of variables must close the quotation marks around the value of A "
            'at its end. Received: "\'b". Write NAME=VALUE',
        ),
        (
            "A='b' c",
            "line 1 of variables must close the quotation marks around the val",
        ),
        (
            "A=1\n\nA=2",
            "line 3 of variables gives A a second value. Received: '2', and before it "
            "'1'. Leave one",
        ),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_variables(text)


def test_the_error_names_the_file():
    with pytest.raises(ValueError, match="^line 1 of --variables env must be a"):
        parse_variables("A", place="--variables env")


@pytest.mark.parametrize(
    "command", ["printenv", "bash -c 'f() { :; }; export -f f; printenv'", "export -p"]
)
def test_what_commands_print(command):
    value = '{"cluster": {"worker": ["a:1"]}} \'$x\' "y" # z'
    done = subprocess.run(
        ["sh", "-c", f"unset OLDPWD; {command}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "TF_CONFIG": value, "RANK": "1"},
    )

    variables = parse_variables(done.stdout)

    assert (variables["TF_CONFIG"], variables["RANK"]) == (value, "1")


@settings(deadline=None, derandomize=True, database=None)
@given(st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1))
def test_what_config_build_writes(value):
    text = f"{{{value}}}"
    for to in ("env", "shell", "dotenv"):
        line = format_tf_config(text, to)

        assert parse_variables(line) == {"TF_CONFIG": text}


@settings(deadline=None, derandomize=True, database=None)
@given(st.text(st.sampled_from("A=1'\" \n#\\{}%") | st.characters()))
def test_any_text_is_variables_or_an_error_with_three_parts(text):
    message = ""
    try:
        variables = parse_variables(text)
    except ValueError as error:
        variables, message = {}, str(error)

    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_.]*", name) for name in variables)
    assert re.fullmatch(r"(.+\. Received: .+\. .+)?", message, re.DOTALL)
