"""Ranks on another host, for which a shell here stands."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tfdist.cluster.launcher import read_culprit, read_saved_step
from tfdist.cluster.this_host import core_quota, cores_of_gpus, parent_of
from tfdist.launching.job import ProcessSpec
from tfdist.launching.machine import installed_versions
from tfdist.launching.remote import messages
from tfdist.launching.remote.commands import (
    agent_line,
    carried_environment,
    local_environment,
    ssh_command,
)
from tfdist.launching.remote.host import (
    RemoteHost,
    RemoteProcess,
)

SECONDS = 120
HOST = "node2"


class Rank:
    """A rank on the host, and what it prints on either stream."""

    def __init__(self, host, rank, script, env):
        pipes = [os.pipe(), os.pipe()]
        spec = ProcessSpec(rank, ("/bin/bash", "-c", script), env, host=HOST)
        (_, stdout), (_, stderr) = pipes
        self.process = RemoteProcess(host, spec, stdout=stdout, stderr=stderr)
        os.close(stdout)
        os.close(stderr)
        self.printed, self.errors = (open(end) for end, _ in pipes)  # noqa: SIM115

    def wait(self):
        while not self.process.is_gone:
            assert select.select([self.process], [], [], SECONDS)[0], "no news"
            self.process.receive()
        return self.process.exit_code


@pytest.fixture
def connect(ssh, write_program):
    """Return a function that connects to a host, by a script in place of ssh."""
    hosts = []

    def connect(script=None, **options):
        if script is not None:
            options["ssh"] = write_program("other_ssh", script)
        hosts.append(RemoteHost(HOST, 2, **{"ssh": ssh, **options}))
        return hosts[-1]

    yield connect
    for host in hosts:
        host.close()


@pytest.fixture
def host(connect):
    host = connect()
    host.hello.result(SECONDS)
    return host


@pytest.fixture
def start(host):
    """Return a function that starts a rank on the host; end all of them afterwards."""
    started = []

    def start(script, rank=0, **env):
        started.append(Rank(host, rank, script, env))
        return started[-1]

    yield start
    for one in started:
        one.process.hang_up()
        one.process.wait()
        one.printed.close()
        one.errors.close()


def test_the_agent_introduces_itself_after_what_a_shell_prints(connect, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    chatty = 'for line; do :; done\nprintf "Welcome!\\n\\nno end"\nexec sh -c "$line"'
    hello = connect(chatty).hello.result(SECONDS)

    assert hello["versions"] == installed_versions()
    assert set(hello["cores"]) == os.sched_getaffinity(0)
    assert [tuple(gpu) for gpu in hello["gpus"]] == [*cores_of_gpus(hello["cores"])]
    assert hello["visible"] == "1,0"
    assert hello["quota"] == core_quota()
    assert len(set(hello["ports"])) == 2


def test_tfdist_that_is_not_installed(connect, write_program):
    python = write_program("python", f'exec {sys.executable} -I -S "$@"')

    with pytest.raises(OSError, match=f"^tfdist is not installed for {python} on"):
        connect(python=python).hello.result(SECONDS)


def test_another_program_than_an_agent(connect):
    text = 'printf "\\ntfdist agent 2\\nSSH-2.0-OpenSSH"; exec 3>&1 cat >&2'

    error = r"^What answers on node2 is no agent of this tfdist\. Received: b'SSH-2"
    with pytest.raises(OSError, match=error):
        connect(text).hello.result(SECONDS)


def test_an_endless_line_in_place_of_an_agent(connect):
    with pytest.raises(OSError, match=r"is no agent .*Received: b'y\\ny\\n.*printed"):
        connect("exec yes").hello.result(SECONDS)


# Says hello, waits until a rank is started, then sends what a test gives it.
FALSE_AGENT = """
import json, os, sys
from tfdist.launching.machine import installed_versions
from tfdist.rendezvous.wire import pack, receive

hello = {"kind": "hello", "versions": installed_versions()}
hello |= {"ports": [5000, 5001], "cores": [0], "gpus": []}
hello |= {"visible": None, "quota": None}
os.write(1, b"\\ntfdist agent 2\\n" + pack(hello | json.loads(sys.argv[1])))
while b"start" not in (said := os.read(0, 65536)):
    if not said:
        sys.exit()
for word in sys.argv[2:]:
    os.write(1, eval(word) if word.startswith("b") else pack(json.loads(word)))
while os.read(0, 65536): pass
"""


@pytest.fixture
def connect_false(connect, tmp_path):
    """Return a function that connects to an agent which sends what it is given."""
    (tmp_path / "agent.py").write_text(FALSE_AGENT)

    def connect_false(*words, **hello):
        agent = [sys.executable, str(tmp_path / "agent.py"), json.dumps(hello)]
        return connect(f"exec {shlex.join([*agent, *words])}")

    return connect_false


NO_AGENT = "What answers on node2 is no agent of this tfdist. Received: "
EXIT = {"kind": "exit", "rank": 0, "code": 0, "ago": 0.5}
OUTPUT = {"kind": "output", "rank": 0, "stream": 1, "data": ""}
ENDED = json.dumps(EXIT)
FALSE_MESSAGES = {
    "no kind": ["{}"],
    "a kind that is a list": ['{"kind": [[]]}'],
    "another kind": ['{"kind": "\\u001b[2J", "rank": 0}'],
    "no code": ['{"kind": "exit", "rank": 0}'],
    "a code that is text": [json.dumps(EXIT | {"code": "three"})],
    "a code that is true": [json.dumps(EXIT | {"code": True})],
    "a code of no process": [json.dumps(EXIT | {"code": -9999})],
    "a time that is no number": [json.dumps(EXIT | {"ago": float("nan")})],
    "a second exit": [ENDED, ENDED],
    "gone before its exit": ['{"kind": "gone", "rank": 0}'],
    "a rank that was not started": [json.dumps(EXIT | {"rank": 7})],
    "a rank that is a list": [json.dumps(EXIT | {"rank": [0]})],
    "a second hello": ['{"kind": "hello", "refusal": "no"}'],
    "a third stream": [json.dumps(OUTPUT | {"stream": 2})],
    "what is not base64": [json.dumps(OUTPUT | {"data": "?"})],
    "notes of text": ['{"kind": "notes", "notes": ["saved", "", false]}'],
    "a list": ["[1, 2]"],
    "no JSON": ["b'\\0\\0\\0\\3{]}'"],
    "an endless line": ["b'y' * 9_000_000"],
    "an endless message": ["b'\\0\\x7f\\0\\0' + b' ' * 9_000_000"],
}


@pytest.mark.parametrize("words", FALSE_MESSAGES.values(), ids=FALSE_MESSAGES)
def test_a_message_that_no_agent_sends_ends_the_rank(connect_false, words):
    host = connect_false(*words)
    host.hello.result(SECONDS)
    rank = Rank(host, 0, "exit 0", {})

    assert rank.wait() == (0 if words[0] == ENDED else 255)
    printed = rank.errors.read()
    start, _, remedy = printed.partition(NO_AGENT)
    assert start == "tfdist run: node2 is lost to this run: "
    assert remedy.endswith(" or name its interpreter: --python.\n")
    assert len(printed) < 600
    assert printed[:-1].isprintable()


@pytest.mark.parametrize(
    "hello",
    [
        {"ports": [5000]},
        {"ports": [5000, 70_000]},
        {"cores": []},
        {"gpus": [0]},
        {"visible": 1},
        {"quota": "4"},
        {"versions": ["1.0"]},
        {"versions": {"Keras": "3\x1b[2J"}},
        {"refusal": "no\x07"},
    ],
    ids=str,
)
def test_an_introduction_that_no_agent_sends_is_an_error(connect_false, hello):
    with pytest.raises(OSError, match=f"^{re.escape(NO_AGENT)}.* 'hello'") as raised:
        connect_false(**hello).hello.result(SECONDS)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("number", [-64, 255])
def test_any_exit_code_of_a_process_is_an_agents(connect_false, number):
    end = [EXIT | {"code": number}, {"kind": "gone", "rank": 0}]
    host = connect_false(*map(json.dumps, end))
    host.hello.result(SECONDS)

    assert Rank(host, 0, "exit 0", {}).wait() == number


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", -15)]
)
def test_the_exit_is_reported_on_the_clock_of_the_launcher(start, script, code):
    began = time.monotonic()
    rank = start(script)

    assert rank.wait() == code
    assert began < rank.process.ended_seconds < time.monotonic()


def test_the_environment_is_that_of_the_launcher_without_an_identity(
    start, monkeypatch
):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("TFDIST_RANK", "7")

    rank = start("echo $KEPT $GIVEN ${TFDIST_SIZE-none}; exit $TFDIST_RANK", GIVEN="2")

    assert (rank.wait(), rank.printed.read()) == (7, "1 2 none\n")


def test_streams_stay_apart_and_whole(start):
    rank = start("echo out; echo err >&2; printf '\\377\\n'; seq 20000")

    text = rank.printed.buffer.read()
    assert text == b"out\n\xff\n" + b"".join(b"%d\n" % n for n in range(1, 20001))
    assert rank.errors.read() == "err\n"
    assert rank.wait() == 0


def test_signals_reach_their_rank_after_its_start(start):
    ranks = [start(f"trap 'exit {n}' TERM; kill $$", n) for n in range(3)]
    asleep = [start("exec sleep 1000", 3 + n) for n in range(3)]
    for rank in asleep:
        rank.process.send(signal.SIGKILL)

    assert [rank.wait() for rank in ranks + asleep] == [0, 1, 2, -9, -9, -9]
    # A signal to a rank that is gone is ignored.
    ranks[0].process.send(signal.SIGTERM)
    assert start("exit 3", 7).wait() == 3


def test_signals_to_all_processes_of_a_host_leave_its_ranks_time_to_save(start):
    rank = start("trap 'sleep 0.5; exit 7' TERM; echo $PPID; sleep 1000 & wait")
    agent = parent_of(int(rank.printed.readline()))

    os.kill(agent, signal.SIGTERM)
    os.kill(agent, signal.SIGUSR1)
    rank.process.send(signal.SIGTERM)

    assert rank.wait() == 7


def test_an_interpreter_that_is_missing_within_the_working_directory(connect):
    python = f"{os.getcwd()}/missing/python"

    with pytest.raises(OSError, match=f"^There is no such interpreter on {HOST}"):
        connect(python=python).hello.result(SECONDS)


def test_a_connection_that_breaks_ends_both_sides(start, host, assert_ends):
    rank = start("echo $$; exec sleep 1000")
    pid = int(rank.printed.readline())

    host.process.kill()

    assert rank.wait() == 255
    assert rank.errors.read().startswith(
        f"tfdist run: {HOST} is lost to this run: The connection to {HOST} has ended "
    )
    assert_ends(pid)
    # As is a rank that is started there later.
    rank.process.hang_up()
    assert start("exit 0").wait() == 255


def test_a_host_that_falls_silent_is_lost(connect, monkeypatch):
    monkeypatch.setattr(messages, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(messages, "BEAT_SECONDS", 0.1)
    host = connect("exec 3>&1 cat >&2")
    with pytest.raises(TimeoutError):
        host.hello.result(0.5)
    host = connect('printf "\\ntfdist agent 2\\n"; exec 3>&1 cat >&2')

    with pytest.raises(OSError, match="nothing has come for"):
        host.hello.result(SECONDS)


# It soon misses the launcher once that has sent a signal, and not before.
FAST_AGENT = f"""exec {sys.executable} -c '
import sys
from tfdist.launching.remote import agent, messages

class Agent(agent.Agent):
    async def _handle(self, message):
        await super()._handle(message)
        if message["kind"] == "signal":
            messages.SILENCE_SECONDS = 1.0

messages.SILENCE_SECONDS, messages.BEAT_SECONDS = 1000.0, 0.1
agent.Agent, sys.argv = Agent, ["", "2"]
agent.main()'"""


def test_a_launcher_that_falls_silent_is_missed_unless_it_is_stopped(
    connect, monkeypatch, assert_ends
):
    monkeypatch.setattr(messages, "BEAT_SECONDS", 1000.0)
    host = connect(FAST_AGENT)
    host.hello.result(SECONDS)
    rank = Rank(host, 0, "echo $$; exec sleep 1000", {})
    pid = int(rank.printed.readline())
    rank.process.send(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        host.process.wait(1.5)

    rank.process.send(signal.SIGCONT)

    assert rank.wait() == 255
    assert_ends(pid)


def test_a_host_is_given_up_though_its_output_is_not_read(start, assert_ends):
    full = start("echo $$; exec yes")
    pid = int(full.printed.readline())

    full.process.kill_guardian()

    assert full.wait() == 255
    assert_ends(pid)


def test_output_that_is_not_read_stops_nothing_else(start):
    """A blocked console delays the ranks; signals arrive all the same."""
    other = start("trap 'exit 7' TERM; echo ready; sleep 1000 & wait", 1)
    other.printed.readline()
    full = start("exec yes", 0)
    full.printed.readline()

    full.process.send(signal.SIGKILL)
    other.process.send(signal.SIGTERM)
    # Only now there is room for what was printed, and then for how they have ended.
    text = full.printed.read()

    assert set(text.split()) == {"y"}
    assert (full.wait(), other.wait()) == (-9, 7)


def test_the_command_of_ssh_and_of_slurm():
    command = ssh_command("ssh -i 'my key'", "[fd00::1]", "cd / && true")
    assert command == [
        *("ssh", "-i", "my key", "-T", "-o", "BatchMode=yes", "--", "fd00::1"),
        "cd / && true",
    ]
    command = ssh_command("/opt/bin/srun --mem=0", "n8", "cd / && true")
    assert command[:2] == ["/opt/bin/srun", "--mem=0"]
    assert command[-4:] == ["--nodelist=n8", "sh", "-c", "cd / && true"]


def test_any_folder_and_path_can_be_written(tmp_path):
    folder = tmp_path / "a b'c"
    folder.mkdir()
    show = "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], sys.argv)"
    (folder / "python").write_text(f"#!{sys.executable}\n{show}\n")
    (folder / "python").chmod(0o755)

    line = agent_line(str(folder), f"{folder}/python", "/x y", 3)
    printed = subprocess.check_output(["/bin/sh", "-c", line], text=True)

    words = [f"{folder}/python", "-m", "tfdist.launching.remote.agent", "3"]
    assert printed == f"{folder} /x y {words}\n"
    assert shlex.split(agent_line("/", "/python", None, 1))[:3] == ["cd", "/", "&&"]


def test_variables_of_a_host_or_login_stay_there():
    kept = {"PATH": "/bin", "TF_CPP_MIN_LOG_LEVEL": "2", "USERNAME_OF_DATA": "me"}
    own = {"HOME": "/root", "USER": "me", "SSH_AUTH_SOCK": "/x", "XDG_DATA": "/y"}
    own |= {"SLURM_PROCID": "0", "PMIX_RANK": "0", "_": "x", "DBUS_X": "1"}

    assert carried_environment(kept | own, None) == kept
    # A step on one node would ask for the GPUs of all.
    assert local_environment(kept | {"SLURM_GPUS": "8"}) == kept


@pytest.mark.parametrize(
    ("here", "there", "carried"),
    [
        ("0,1", None, True),
        ("", None, True),
        ("0,1", "2", False),
        ("GPU-8932f937", None, False),
    ],
)
def test_gpus_are_named_as_there(here, there, carried):
    environ = {"CUDA_VISIBLE_DEVICES": here}

    assert carried_environment(environ, there) == (environ if carried else {})


@pytest.mark.parametrize(
    ("printed", "exit_code", "expected"),
    [
        (
            "me@node2: Permission denied (publickey,password).",
            255,
            "node2 does not let you in without a password. Received: me@node2: "
            "Permission denied (publickey,password). Put your public key there: "
            "ssh-copy-id node2$",
        ),
        (
            "Warning: something\nHost key verification failed.",
            255,
            "The key of the host node2 is not known here, or has changed. Received: "
            "Host key verification failed. Connect to it once by hand",
        ),
        (
            "bash: line 1: /env/bin/python: No such file or directory",
            127,
            "There is no such interpreter on node2. Received: bash: line 1: ",
        ),
        (
            "strange things happen",
            3,
            "The connection to node2 has ended with exit code 3. Received: strange "
            "things happen. Try by hand: ssh node2 /env/bin/python --version$",
        ),
        ("", 255, "The connection .* exit code 255. Received: no tfdist agent has "),
    ],
)
def test_each_cause_is_told_with_its_remedy(connect, printed, exit_code, expected):
    script = f"printf {shlex.quote(printed)} >&2; exit {exit_code}"
    host = connect(script, python="/env/bin/python")

    with pytest.raises(OSError, match="^" + re.sub(r"([()])", r"\\\1", expected)):
        host.hello.result(SECONDS)


def test_a_host_that_does_not_answer(connect):
    host = connect("echo Warning: slow >&2; exec 3>&1 cat >&2")
    while not host.explain(TimeoutError()).startswith(
        "node2 has not answered in time. Received: Warning: slow. Try by hand: ssh"
    ):
        assert not host.hello.done()


@pytest.mark.parametrize("ssh", ["", "  ", "ssh -i 'open"])
def test_what_is_no_command_for_ssh_is_refused(ssh):
    with pytest.raises(ValueError, match=r"--ssh must be a command .*Received: --ssh "):
        ssh_command(ssh, "node1", "true")


def test_what_rank_0_writes_reaches_the_launcher(start, tmp_path):
    progress = tmp_path / "0"
    progress.touch()
    there = 'printf %020d 57 > "$TFDIST_PROGRESS_FILE"'
    culprit = 'printf 3 > "$TFDIST_PROGRESS_FILE.culprit"; exit 1'
    rank = start(
        f"{there}; until [ -e {tmp_path}/go ]; do sleep 0.05; done; {culprit}",
        TFDIST_PROGRESS_FILE=str(progress),
    )
    # While the rank runs: its host may be lost before the rank ends.
    deadline = time.monotonic() + SECONDS
    while read_saved_step(progress) != 57:
        assert time.monotonic() < deadline
    (tmp_path / "go").touch()

    assert rank.wait() == 1
    assert (read_saved_step(progress), read_culprit(progress)) == (57, 3)


def test_what_another_rank_writes_does_not(start, tmp_path):
    progress = tmp_path / "0"
    progress.touch()
    own = 'echo 7 > "$TFDIST_PROGRESS_FILE"'

    assert start(own, 1, TFDIST_PROGRESS_FILE=str(progress)).wait() == 0
    assert read_saved_step(progress) is None
