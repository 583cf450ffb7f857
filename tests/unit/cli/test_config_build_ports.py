"""`tfdist config build`: ports that are fixed, ranged, or picked."""

import socket

import pytest

from tfdist.cluster.address import split_address
from tfdist.cluster.tf_config import loads
from tfdist_cli.main import main


def workers(capsys, options):
    assert main(["config", "build", "--index", "0", *options.split()]) == 0
    return loads(capsys.readouterr().out).workers


@pytest.mark.parametrize(
    ("options", "addresses"),
    [
        ("-H a:2,b", ("a:2222", "a:2223", "b:2222")),
        ("-H a:2,b --port 5000", ("a:5000", "a:5001", "b:5000")),
        ("-H a:2,b --port-range 5000-5001", ("a:5000", "a:5001", "b:5000")),
    ],
)
def test_ports_are_counted_up_on_each_host(capsys, options, addresses):
    assert workers(capsys, options) == addresses


def test_picked_ports_are_free(capsys):
    found = workers(capsys, "-H localhost:3 --pick-ports")

    ports = [split_address(address)[1] for address in found]
    assert len(set(ports)) == 3
    assert ports == sorted(ports)
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", port))


def test_a_port_of_the_range_that_is_taken_is_left_out(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = f"{port}-{min(port + 50, 65_535)}"

        (address,) = workers(capsys, f"-H localhost --pick-ports --port-range {ports}")

    assert split_address(address)[1] > port


def test_the_ports_of_other_hosts_are_counted_up(capsys, monkeypatch):
    monkeypatch.setattr(
        "tfdist.launch.this_machine.is_this_machine", lambda host: host == "here"
    )

    found = workers(capsys, "-H here:2,there:2 --pick-ports --port-range 5000-5900")

    assert found[2:] == ("there:5000", "there:5001")
    assert all(address.startswith("here:5") for address in found[:2])


def test_a_machine_with_two_names_has_each_port_once(capsys, monkeypatch):
    monkeypatch.setattr("tfdist.launch.this_machine.is_this_machine", lambda host: True)
    monkeypatch.setattr("tfdist.launch.ports._is_free", lambda host, port: True)

    found = workers(capsys, "-H here:2,there --pick-ports --port-range 5000-5002")

    assert found == ("here:5000", "here:5001", "there:5002")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            "-H a:3 --port-range 5000-5001",
            "--port-range has too few ports for the workers of a. "
            "Received: 5000-5001, 3 workers. Widen it",
        ),
        (
            "-H a --port 5000 --port-range 5000-5001",
            "--port leaves nothing to choose. "
            "Received: --port 5000 and --port-range 5000-5001. Leave one",
        ),
        (
            "-H a --port 5000 --pick-ports",
            "--port leaves nothing to choose. "
            "Received: --port 5000 and --pick-ports. Leave one",
        ),
        (
            "-H a.invalid,b.invalid --pick-ports",
            "--pick-ports can check the ports of this machine only. "
            "Received: a.invalid, b.invalid, which are others. Leave",
        ),
        (
            "--workers a:1 --pick-ports",
            "--pick-ports has no effect without -H or --hostfile, as addresses have "
            "ports of their own. Received: --pick-ports. Leave it out",
        ),
        (
            "--workers a:1 --port-range 1-2",
            "--port-range has no effect without -H or --hostfile, as addresses have "
            "ports of their own. Received: --port-range 1-2. Leave it out",
        ),
    ],
)
def test_what_is_refused(options, error, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", "--index", "0", *options.split()])

    assert capsys.readouterr().err.startswith(f"tfdist config build: error: {error}")


def test_too_few_are_free(capsys, monkeypatch):
    monkeypatch.setattr("tfdist.launch.ports._is_free", lambda host, port: False)
    with pytest.raises(SystemExit, match="2"):
        main(["config", "build", "-H", "localhost", "--pick-ports", "--index", "0"])

    message = "error: There are not enough free ports on 0.0.0.0. Received: 1 wanted"
    assert message in capsys.readouterr().err
