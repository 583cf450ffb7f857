import pytest

from tfdist.cluster.variables import HIDDEN, relevant_variables


def test_what_matters_is_shown_in_order():
    env = {
        "XLA_FLAGS": "--x",
        "TF_CONFIG": "{}",
        "HOME": "/root",
        "TFDIST_RANK": "0",
        "HTTP_PROXY": "p:1",
        "no_proxy": "a",
        "RANK": "1",
        "MY_RANK": "2",
        "AWS_SECRET_ACCESS_KEY": "s",
    }

    assert relevant_variables(env) == {
        "HTTP_PROXY": "p:1",
        "RANK": "1",
        "TFDIST_RANK": "0",
        "TF_CONFIG": "{}",
        "XLA_FLAGS": "--x",
        "no_proxy": "a",
    }


def test_other_variables_that_were_read():
    assert relevant_variables({"MY_HOSTS": "a,b"}, ["MY_HOSTS"]) == {"MY_HOSTS": "a,b"}


@pytest.mark.parametrize(
    "name",
    [
        "HOROVOD_SECRET_KEY",
        "SLURM_JWT",
        "TF_API_TOKEN",
        "TF_password",
        "NCCL_PASSWD",
        "OMPI_CREDENTIALS",
        "TF_AUTH",
    ],
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


def test_a_wrong_address_is_shown_as_it_is():
    env = {"TF_CONFIG": '{"cluster":{"worker":["me@a:1"]}}'}

    assert relevant_variables(env) == env
