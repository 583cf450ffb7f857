"""`tfdist run -H` on two hosts: network namespaces, each with a real sshd."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launcher import TFDIST
from two_hosts import ADDRESSES, two_hosts

pytestmark = [
    pytest.mark.new_processes,
    pytest.mark.slow,
    pytest.mark.requires("ip", "sshd", "ssh"),
    pytest.mark.skipif(
        os.geteuid() != 0 and os.environ.get("CI") != "true",
        reason="only root can make network namespaces",
    ),
]

A, B = ADDRESSES
SECONDS = 1200
# What docs/clusters.md promises; the launcher hears nothing for 15 s first.
LOST_SECONDS = 30

TRAIN = """
import os, sys
import keras, numpy as np, tfdist

keras.utils.set_random_seed(1)
strategy = tfdist.strategies.create("all_reduce")
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.random.default_rng(3).normal(size=(64, 4))

class Says(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            print("in its midst", flush=True)

epochs = int(sys.argv[1])
model.fit(x, x[:, :1], batch_size=16, epochs=epochs, verbose=0, callbacks=[Says()])
total = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
print("size", tfdist.size(), "weights", total, "dir", os.getcwd(), flush=True)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with two_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def start(hosts, tmp_path):
    """Return a function that starts `tfdist run` on the first host."""
    (tmp_path / "train.py").write_text(TRAIN)
    started = []

    def start(*words, ssh=hosts.ssh):
        process = subprocess.Popen(
            hosts.inside(0, *TFDIST, "--ssh", ssh, *words),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    """Wait for the end; return the exit code and what was printed."""
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def processes_of(tmp_path):
    """Return the command lines of what runs the test's program, on any host."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = os.readlink(entry.with_name("cwd"))
        except OSError:
            continue
        if folder == str(tmp_path) and "tfdist_cli" not in line:
            lines.append(line)
    return lines


def test_two_hosts_train_what_one_trains(start, tmp_path):
    words = ("-H", f"{A}:1,{B}:1", "train.py", "2")
    code, out, err = ended(start(*words))
    assert code == 0, err
    shown = dict(re.findall(r"^\[(\d [\d.]+)\] size (.*)$", out, re.MULTILINE))
    assert set(shown) == {f"0 {A}", f"1 {B}"}
    assert len(set(shown.values())) == 1
    size, _, weights, _, folder = shown[f"0 {A}"].split()

    code, out, err = ended(start("-np", "1", "-H", A, "train.py", "2"))
    assert code == 0, err
    alone = re.search(r"size 1 weights (\S+)", out)
    assert (size, folder) == ("2", str(tmp_path))
    assert float(weights) == pytest.approx(float(alone[1]), rel=1e-5)


def test_more_ranks_than_sshd_takes_connections_at_once(start):
    """They share one: `MaxStartups` is 2 there."""
    code, out, err = ended(start("-H", f"{B}:12", "bash", "-c", "echo $TFDIST_RANK"))

    assert code == 0, err
    assert {line.split()[-1] for line in out.splitlines()} == set(map(str, range(12)))


def test_a_rank_that_fails_ends_the_others(start, tmp_path):
    script = "[ $TFDIST_RANK = 1 ] && echo oh no >&2 && exit 3; exec sleep 1000"
    code, _, err = ended(start("-H", f"{A}:1,{B}:2", "bash", "-c", script))

    assert code == 3
    assert "tfdist run: the last lines of rank 1:\n    oh no\n" in err
    assert f"tfdist run: rank 1 on {B} failed with exit code 3 after" in err
    assert "ranks 0 and 2 were still running and were ended." in err
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_launcher(start, tmp_path, number):
    words = ("-H", f"{A}:1,{B}:1", "bash", "-c")
    process = start(*words, "echo ready; exec sleep 1000")
    for _ in range(2):
        assert "ready" in process.stdout.readline()

    process.send_signal(number)
    process.communicate(timeout=SECONDS)

    assert process.returncode == (130 if number == signal.SIGINT else -9)
    deadline = time.monotonic() + LOST_SECONDS
    while processes_of(tmp_path):
        assert time.monotonic() < deadline, processes_of(tmp_path)


def test_a_link_that_is_cut_in_mid_epoch_ends_the_run(start, hosts, tmp_path):
    words = ("-H", f"{A}:1,{B}:1", "train.py", "100000")
    process = start(*words)
    while "in its midst" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    # What is printed meanwhile must not fill the pipe.
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    reader.start()

    cut = time.monotonic()
    hosts.cut()
    try:
        err = process.stderr.read()
        process.wait(SECONDS)
        seconds = time.monotonic() - cut
        while processes_of(tmp_path):
            assert time.monotonic() - cut < LOST_SECONDS, processes_of(tmp_path)
    finally:
        hosts.join()

    assert process.returncode != 0
    assert seconds < LOST_SECONDS
    assert re.search(rf"rank 1( on|, at| \(|: ).*{B}", err), err
    assert f"{B} is lost to this run: nothing has come for 15 s" in err


def test_ranks_without_a_launcher_name_each_other_when_the_link_is_cut(hosts, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    workers = [f"{address}:5555" for address in ADDRESSES]
    ranks = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        tf_config = json.dumps({"cluster": {"worker": workers}, "task": task})
        words = ("env", f"TF_CONFIG={tf_config}", sys.executable, program, "100000")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ranks.append(subprocess.Popen(hosts.inside(index, *words), text=True, **pipes))
    try:
        for rank in ranks:
            while "in its midst" not in rank.stdout.readline():
                assert rank.poll() is None
        cut = time.monotonic()
        hosts.cut()
        for rank, other in zip(ranks, (1, 0), strict=True):
            error = re.compile(rf"rank {other} \(.* is gone: its connection closed")
            assert any(map(error.search, iter(rank.stdout.readline, "")))
        assert time.monotonic() - cut < LOST_SECONDS
    finally:
        hosts.join()
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-H", f"{A},10.77.19.9"), "The connection to 10.77.19.9 has ended with"),
        (("-H", f"{A},nohost.invalid"), "The name of the host nohost.invalid is not"),
        (
            ("-H", f"{A},{B}", "--python", "/no/python"),
            "There is no such interpreter on",
        ),
    ],
)
def test_a_host_that_cannot_be_used_is_named(start, words, message):
    code, _, err = ended(start(*words, "--start-timeout", "200", "true"))

    assert code == 2
    assert f"tfdist run: error: {message}" in err


# Another address of the first host, which the launcher takes for a third one.
C = "10.77.19.3"
BREAKS = """
import os, signal, sys
import keras, numpy as np, tfdist

class Breaks(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and os.environ["TFDIST_SLOT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(3).normal(size=(64, 4))
keras.utils.set_random_seed(1)
with tfdist.strategies.AllReduceStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
backup = tfdist.callbacks.BackupAndRestore(sys.argv[1])
fit = {"batch_size": 16, "epochs": 3, "verbose": 0, "callbacks": [backup, Breaks()]}
model.fit(x, x[:, :1], **fit)
total = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
print("weights", total, flush=True)
"""


def test_a_spare_host_takes_the_place_of_one_that_stays_dead(start, hosts, tmp_path):
    """Rank 0 is on the other host, and its saved steps reach the launcher."""
    (tmp_path / "breaks.py").write_text(BREAKS)
    words = ("ip", "address", "replace", f"{C}/24", "dev", "veth1")
    subprocess.run(hosts.inside(0, *words), check=True)

    words = ("-H", f"{B},{A},{C}", "-np", "2", "--max-restarts", "4", "breaks.py")
    code, out, err = ended(start(*words, "backup"))

    assert code == 0, err
    weights = re.findall(r"weights (\S+)", out)
    code, out, _ = ended(start("-H", A, "-np", "1", "breaks.py", "alone"))
    assert code == 0
    alone = float(re.search(r"weights (\S+)", out)[1])
    assert [float(total) for total in weights] == [pytest.approx(alone, rel=1e-5)] * 2
    for number in (1, 2):
        killed = f"tfdist run: restart {number} of 4: rank 1 on {A} was killed by SIGK"
        restarts = [line for line in err.splitlines() if line.startswith(killed)]
        # When it happens, and in the end.
        assert len(restarts) == 2
        assert all(" The last saved step was 4." in line for line in restarts)
    assert f" Host {A} stays dead and is left out: it goes on with 2 processes. " in err
    assert f"In its place: host {C}." in err
    assert processes_of(tmp_path) == []


def test_a_missing_key_and_an_unknown_host_are_told_apart(start, hosts, tmp_path):
    known = f"UserKnownHostsFile={hosts.folder / 'known_hosts'}"
    stranger = tmp_path / "id"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True
    )
    without_key = f"ssh -F none -p 2222 -i {stranger} -o {known}"
    unknown = f"ssh -F none -p 2222 -i {hosts.folder / 'id'} -o UserKnownHostsFile=none"

    _, _, err = ended(start("-H", f"{A},{B}", "true", ssh=without_key))
    assert f"{B} does not let you in without a password. Received: " in err
    assert f"Put your public key there: ssh-copy-id {B}" in err

    _, _, err = ended(start("-H", f"{A},{B}", "true", ssh=unknown))
    assert f"The key of the host {B} is not known here" in err
