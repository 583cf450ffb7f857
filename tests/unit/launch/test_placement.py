"""What is ready before ranks start; a shell here stands for each host."""

import json
import os
import socket
import sys

import pytest

from tfdist.cluster.hosts.slots import HostSlots
from tfdist.launch import placement as placement_module
from tfdist.launch.hosts import Hosts
from tfdist.launch.job import Job
from tfdist.launch.limits import Limits
from tfdist.launch.local import run_once
from tfdist.launch.output import Output
from tfdist.launch.placement import placed, supposed

# Addresses of examples, which no machine has.
A, B = "203.0.113.1", "203.0.113.2"
SHOW = 'echo "$TFDIST_RANK of $TFDIST_SIZE, $TFDIST_LOCAL_RANK of $TFDIST_LOCAL_SIZE"'


def job_of(script=SHOW, size=3):
    return Job(("/bin/sh", "-c", script), size=size)


@pytest.fixture
def hosts(ssh):
    return Hosts((HostSlots(A, 2), HostSlots(B, 1)), ssh=ssh, start_timeout_seconds=30)


def test_ranks_are_started_on_their_hosts(hosts, capfd):
    with placed(job_of(), hosts) as placement:
        assert set(placement.remote) == {A, B}
        result = run_once(
            placement.specs,
            output=Output(),
            limits=Limits(timeout_seconds=30),
            signals=None,
            remote=placement.remote,
        )

    assert [(exit_.code, exit_.host) for exit_ in result.exits] == [
        *((0, A), (0, A)),
        (0, B),
    ]
    assert sorted(capfd.readouterr().out.splitlines()) == [
        f"[0 {A}] 0 of 3, 0 of 2",
        f"[1 {A}] 1 of 3, 1 of 2",
        f"[2 {B}] 2 of 3, 0 of 1",
    ]


def test_this_machine_needs_no_connection(hosts, monkeypatch):
    monkeypatch.setattr(placement_module, "is_this_machine", lambda host: host == A)

    with placed(job_of(), hosts) as placement:
        assert set(placement.remote) == {B}
        assert [spec.host for spec in placement.specs] == [A, A, B]


def test_every_rank_has_an_address_on_its_host():
    hosts = Hosts((HostSlots(A, 2), HostSlots(B, 1)))
    specs = supposed(job_of(), hosts)

    workers = json.loads(specs[2].env["TF_CONFIG"])["cluster"]["worker"]
    assert [address.rpartition(":")[0] for address in workers] == [A, A, B]
    assert len(set(workers)) == 3
    assert [spec.env["TFDIST_LOCAL_SIZE"] for spec in specs] == ["2", "2", "1"]


def test_hosts_that_are_not_needed_are_left_alone(hosts):
    with placed(job_of(size=2), hosts) as placement:
        assert set(placement.remote) == {A}


def test_all_hosts_that_cannot_be_used_are_named(tmp_path):
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho ssh: no way >&2\nexit 255\n")
    program.chmod(0o755)
    hosts = Hosts((HostSlots(A), HostSlots(B)), ssh=str(program))

    with (
        pytest.raises(OSError, match="no way") as caught,
        placed(job_of(size=2), hosts),
    ):
        pass

    first, second = str(caught.value).splitlines()
    assert first.startswith(f"The connection to {A} has ended with exit code 255.")
    assert second.startswith(f"The connection to {B} has ended with exit code 255.")


def test_other_versions_are_refused(hosts, monkeypatch):
    here = {"Python": "3.11", "tfdist": "0.0", "TensorFlow": "9.9"}
    monkeypatch.setattr(placement_module, "installed_versions", lambda: here)

    with (
        pytest.raises(OSError, match="Other versions") as caught,
        placed(job_of(), hosts),
    ):
        pass

    message = str(caught.value).splitlines()[0]
    assert message.startswith(f"Other versions are installed on {A}. Received: ")
    assert "tfdist" in message
    assert ", here 0.0; TensorFlow" in message
    assert message.endswith(
        f", here 9.9, in {sys.executable}. Make the same environment there as here."
    )


def test_a_signal_ends_the_waiting(tmp_path):
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    ear, mouth = socket.socketpair()
    hosts = Hosts((HostSlots(A),), ssh=str(program))
    with ear, mouth:
        mouth.send(b"\2")
        with pytest.raises(KeyboardInterrupt), placed(job_of(size=1), hosts, ear):
            pass
        # It is still to be read by who comes next.
        assert ear.recv(1) == b"\2"


def test_the_run_has_an_identity_of_its_own():
    hosts = Hosts((HostSlots(A),))
    ids = {supposed(job_of(size=1), hosts)[0].env["TFDIST_RUN_ID"] for _ in range(2)}

    assert len(ids) == 2
    assert os.environ.get("TFDIST_RUN_ID") not in ids
