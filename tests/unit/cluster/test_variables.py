import os
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.tf_config import format_tf_config
from tfdist.cluster.variables import HIDDEN, parse_variables, relevant_variables

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

FUNCTION = "BASH_FUNC_module%%=() {  eval $(modulecmd bash $*)\n}"


def test_relevant_variables_are_in_order():
    shown = {
        "HTTP_PROXY": "p:1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "RANK": "1",
        "SLURM_JOB_ID": "7",
        "TFDIST_RANK": "0",
        "TF_CONFIG": '{"cluster":{"worker":["me@a:1"]}}',
        "XLA_FLAGS": "--x\ny",
        "no_proxy": "a",
    }
    hidden = {"HOME": "/root", "MY_RANK": "2", "AWS_SECRET_ACCESS_KEY": "s"}

    assert relevant_variables(dict(reversed(shown.items())) | hidden) == shown
    assert [*relevant_variables(hidden | shown)] == [*shown]
    assert relevant_variables({"MY_HOSTS": "a,b"}, ["MY_HOSTS"]) == {"MY_HOSTS": "a,b"}


@pytest.mark.parametrize(
    "name",
    ["HOROVOD_SECRET_KEY", "SLURM_JWT", "TF_API_TOKEN", "TF_password", "NCCL_PASSWD"]
    + ["OMPI_CREDENTIALS", "TF_AUTH", "NCCL_PWD", "SLURM_PASS", "TF_PAT"]
    + ["TFDIST_SECRET", "HOROVOD_GLOO_PASS", "SLURM_JOB_COOKIE", "TF_OURS", "NCCL_X"],
)
def test_secrets_are_hidden(name):
    assert relevant_variables({name: "x"}) == {name: HIDDEN}
    assert relevant_variables({name: ""}) == {name: ""}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://me:word@proxy:3128", "http://(hidden)@proxy:3128"),
        ("http://me:w@rd@proxy:3128/", "http://(hidden)@proxy:3128/"),
        ("me:word@proxy:3128", "(hidden)@proxy:3128"),
        ("http://proxy:3128", "http://proxy:3128"),
    ],
)
def test_passwords_of_proxies_are_hidden(value, shown):
    assert relevant_variables({"https_proxy": value}) == {"https_proxy": shown}


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("RANK=1\r\nSIZE=2\r\n", {"RANK": "1", "SIZE": "2"}),
        ("# a dotenv\n\n  # of mine\nEMPTY=", {"EMPTY": ""}),
        ("A= b=c # d", {"A": " b=c # d"}),
        ("export A='b c'", {"A": "b c"}),
        (f"A=1\n{FUNCTION}\nB=2\nA=1", {"A": "1", "B": "2"}),
    ],
)
def test_variables_are_parsed(text, variables):
    assert parse_variables(text) == variables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nhello", "line 2 of env must be a variable and its value. Received: 'he"),
        ("1A=1", "line 1 of env must be a variable and its value. Received: '1A=1'."),
        ("A='b", "line 1 of env must close the quotation marks around the value of A "),
        ("A='b' c", "line 1 of env must close the quotation marks around the value of"),
        ("A=1\n\nA=2", "line 3 of env gives A a second value. Received: '2', and befo"),
    ],
)
def test_malformed_lines_are_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_variables(text, place="env")


@pytest.mark.parametrize(
    "command", ["printenv", "bash -c 'f() { :; }; export -f f; printenv'", "export -p"]
)
def test_the_output_of_commands_is_parsed(command):
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
def test_the_output_of_config_build_is_parsed(value):
    text = f"{{{value}}}"
    for to in ("env", "shell", "dotenv"):
        assert parse_variables(format_tf_config(text, to)) == {"TF_CONFIG": text}
