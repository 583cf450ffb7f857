import io
import sys

import pytest

from tfdist.cluster.hosts.slots import HostSlots
from tfdist_cli.host_options import add_host_options, hosts_given
from tfdist_cli.options import Parser


def read(*words):
    parser = Parser(prog="tfdist")
    add_host_options(parser, "hosts")
    return hosts_given(parser.parse_args(words))


def test_without_a_word_there_are_none():
    assert read() is None


def test_hosts_may_be_given_several_times():
    assert read("-H", "a:2,b", "-H", "c") == (
        HostSlots("a", 2),
        HostSlots("b"),
        HostSlots("c"),
    )


def test_a_file_or_the_standard_input(tmp_path, monkeypatch):
    (tmp_path / "hosts").write_text("a slots=2\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"b:3\n")))

    assert read("--hostfile", str(tmp_path / "hosts")) == (HostSlots("a", 2),)
    assert read("--hostfile", "-") == (HostSlots("b", 3),)


def test_one_of_them_is_enough():
    message = "^-H and --hostfile both give the hosts. Received: -H a and"
    with pytest.raises(ValueError, match=message):
        read("-H", "a", "--hostfile", "hosts")


def test_errors_name_the_line():
    with pytest.raises(ValueError, match="entry 2 of -H"):
        read("-H", "a,b:x")
