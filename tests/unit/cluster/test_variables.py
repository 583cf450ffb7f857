import pytest

from tfdist.cluster.variables import HIDDEN, relevant_variables


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
    ["NCCL_PASSWD", "OMPI_CREDENTIALS", "NCCL_PWD", "GRPC_AUTH", "UCX_PAT"]
    + ["TFDIST_SECRET", "HOROVOD_GLOO_PASS", "SLURM_JOB_COOKIE", "KERAS_TOKEN"],
)
def test_secrets_are_hidden(name):
    assert relevant_variables({name: "x"}) == {name: HIDDEN}
    assert relevant_variables({name: ""}) == {name: ""}


@pytest.mark.parametrize("name", ["TF_OURS", "TF_VAR_db", "SLURM_JWT", "HOROVOD_KEY"])
def test_unknown_variables_are_left_out(name):
    assert relevant_variables({name: "x"}) == {}


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
