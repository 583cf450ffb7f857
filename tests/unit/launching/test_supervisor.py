"""Which processes are ended, when, and which one failed first."""

import os
import signal
import socket
import sys

import pytest

from tfdist.cluster import Task
from tfdist.cluster.launcher import PROGRESS_VARIABLE
from tfdist.launching.events import Timers
from tfdist.launching.job import Limits, ProcessSpec
from tfdist.launching.output import Output
from tfdist.launching.remote.host import RemoteHost
from tfdist.launching.result import failed_seconds
from tfdist.launching.supervisor import Supervisor

SECONDS = 120
SUPERVISOR = "tfdist.launching.supervisor"


@pytest.fixture
def supervise():
    """Return a function that starts shell scripts; end them all afterwards."""
    supervisors = []

    def start(
        *scripts, output=None, tasks=None, env=(), remote=None, signals=None, **limits
    ):
        supervisor = Supervisor(
            output or Output(console=False),
            Limits(**{"grace_seconds": 0.2} | limits),
            signals=signals,
            remote=remote,
        )
        supervisors.append(supervisor)
        host, tasks = next(iter(remote or ()), None), tasks or [None] * len(scripts)
        commands = [("/bin/bash", "-c", script) for script in scripts]
        supervisor.start(
            [
                ProcessSpec(rank, command, dict(env), task=tasks[rank], host=host)
                for rank, command in enumerate(commands)
            ]
        )
        return supervisor

    yield start
    for supervisor in supervisors:
        supervisor.close()


@pytest.fixture
def meet(tmp_path):
    """Return two shell commands: "met" waits until "ready" has run elsewhere."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    return {
        "ready": f"echo ready > {fifo}",
        "met": f"read -r < {fifo}",
    }


@pytest.fixture
def outlive(tmp_path):
    """Return two shell commands: "after" waits until the process of "first" is gone."""
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    return {
        "first": f"echo $$ > {fifo}",
        # It is gone once its guardian has told how it ended.
        "after": f"read -r pid < {fifo}; tail -s 0.05 --pid=$pid -f /dev/null",
    }


@pytest.fixture
def patient(monkeypatch):
    """Let peers of a chief that has ended be asked to end at once, but not be killed.

    With a long grace period, which a starved peer may need.
    """
    set_stage, waits = Timers.set_stage, iter([0.0])
    monkeypatch.setattr(
        Timers,
        "set_stage",
        lambda timers, seconds, action: set_stage(timers, next(waits, seconds), action),
    )
    return {"grace_seconds": SECONDS}


FOREVER = "while :; do sleep 1000 & wait $!; done"


def codes_of(result):
    return [exit_.code for exit_ in result.exits]


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("import signal; signal.pause()", "have not met after 0 s. If"),
        ("", "never met. If"),
    ],
)
@pytest.mark.parametrize("progress", ["", "0"])
def test_ranks_that_have_not_met_are_told_while_they_run_and_in_the_end(
    progress, program, what, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(f"{SUPERVISOR}._MEETING_SECONDS", 0.0)
    path = tmp_path / "progress"
    path.write_text(progress)
    command = sys.executable, "-c", program
    env = {PROGRESS_VARIABLE: str(path)}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if program:
            # The launcher passes it on, and looks at its timers before it hears of the
            # end of the ranks.
            ours.send(bytes([signal.SIGUSR1]))
        supervisor = Supervisor(Output(), Limits(), signals=theirs)
        supervisor.start([ProcessSpec(rank, command, env) for rank in (0, 1)])
        supervisor.wait()
        supervisor.close()

    printed = capfd.readouterr().err
    assert (f"tfdist run: the 2 processes {what}" in printed) is not bool(progress)


def test_peers_may_fail_by_themselves_before_they_are_ended(
    supervise, outlive, monkeypatch
):
    """The peer needs a moment to find out; it is not cut short, and not blamed."""
    monkeypatch.setattr(f"{SUPERVISOR}._SETTLE_SECONDS", SECONDS)
    peer = f"{outlive['after']}; echo 'rank 1 is gone'; exit 9"

    result = supervise(peer, f"{outlive['first']}; exit 3").wait()

    assert codes_of(result) == [9, 3]
    assert (result.failed_rank, result.ended_ranks) == (1, ())
    assert result.exits[0].tail == ("rank 1 is gone",)


@pytest.mark.parametrize(
    ("peer", "settle_seconds", "headline"),
    [
        (FOREVER, 0.1, "rank 1 held up the others, and was ended."),
        ("exit 0", SECONDS, "rank 0 failed with exit code 1 after "),
    ],
    ids=["held up", "ended well"],
)
def test_the_rank_that_held_up_the_others_is_to_blame(
    peer, settle_seconds, headline, supervise, tmp_path, monkeypatch
):
    """Rank 0 fails since rank 1 has not come; `culprit` is what its hub has noted."""
    monkeypatch.setattr(f"{SUPERVISOR}._SETTLE_SECONDS", settle_seconds)
    (tmp_path / "0.culprit").write_text("1")
    env = {PROGRESS_VARIABLE: str(tmp_path / "0")}

    result = supervise("echo rank 1 is late; exit 1", peer, env=env).wait()

    assert result.exit_code == 1
    assert headline.startswith(f"rank {result.failed_rank} ")
    assert result.headline().startswith(headline)


def test_a_question_that_no_rank_answers_is_reported(
    supervise, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(f"{SUPERVISOR}._STACKS_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    env = {PROGRESS_VARIABLE: str(tmp_path / "0")}
    with ours, theirs:
        ours.send(bytes([signal.SIGUSR2]))
        script = f"while [ ! -e {tmp_path}/0.ask ]; do sleep 0.1; done"
        result = supervise(script, env=env, signals=theirs, output=Output()).wait()

    assert result.exit_code == 0
    printed = capfd.readouterr().err
    assert "no rank has answered SIGUSR2. Ranks do so once all have made the" in printed


@pytest.fixture
def remote(ssh):
    """Return a connected host by its name."""
    host = RemoteHost("node2", 1, ssh=ssh)
    host.hello.result(SECONDS)
    yield {"node2": host}
    host.close()


def test_rank_0_on_another_host_is_asked_there(remote, supervise, tmp_path):
    """It answers there, by removing its question, and so the launcher's."""
    progress, question = tmp_path / "0", tmp_path / "0.ask"
    progress.touch()
    env = {PROGRESS_VARIABLE: str(progress)}
    answer = 'until rm "$TFDIST_PROGRESS_FILE.ask"; do sleep 0.1; done 2>/dev/null'
    script = f"{answer}; while [ -e {question} ]; do sleep 0.1; done"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(bytes([signal.SIGUSR2]))
        options = {"signals": theirs, "env": env, "timeout_seconds": SECONDS}
        result = supervise(script, remote=remote, **options).wait()

    assert result.exit_code == 0
    assert not question.exists()


ROLES = (Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0))


def test_the_run_is_what_the_chief_does(supervise, patient):
    """The others are asked to end: all is well."""
    others = [FOREVER] * 3

    result = supervise("exit 0", *others, tasks=ROLES, **patient).wait()

    assert (result.reason, result.exit_code) == ("done", 0)
    assert codes_of(result) == [0, -15, -15, -15]


def test_who_does_not_end_after_the_chief_is_killed(supervise, meet):
    deaf = f"trap '' TERM; {meet['ready']}; {FOREVER}"

    result = supervise(meet["met"], FOREVER, deaf, FOREVER, tasks=ROLES).wait()

    assert (result.reason, result.exit_code) == ("done", 0)
    assert codes_of(result)[2] == -9


def test_who_fails_after_the_chief_has_ended_well_is_no_failure(supervise, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    failing = f"read -r chief < {fifo}; tail --pid=$chief -f /dev/null; exit 4"

    options = {"tasks": ROLES, "grace_seconds": 1000}
    result = supervise(f"echo $$ > {fifo}", failing, **options).wait()

    assert (result.reason, codes_of(result)) == ("done", [0, 4])


def test_a_chief_that_fails_for_want_of_a_server_is_not_blamed(supervise, outlive):
    chief, server = f"{outlive['after']}; exit 1", f"{outlive['first']}; kill -9 $$"

    result = supervise(chief, FOREVER, FOREVER, server, tasks=ROLES).wait()

    assert result.headline().startswith("ps 0 was killed by SIGKILL")


def test_signals_that_came_before_the_start_count(supervise):
    ear, mouth = socket.socketpair()
    with ear, mouth:
        # The alarm is of the program that has called `tfdist.launch`.
        mouth.send(bytes([signal.SIGALRM, signal.SIGTERM]))

        result = supervise(FOREVER, signals=ear).wait()

    assert (result.reason, result.was_interrupted) == ("signal", True)
    assert codes_of(result) == [-signal.SIGTERM]


def test_a_guardian_that_is_stopped_is_given_up(supervise, meet, tmp_path):
    script = f"kill -STOP $PPID; {meet['ready']}; {FOREVER}"
    supervisor = supervise(script, timeout_seconds=0.3)
    # Until it is stopped, the time is not looked at.
    (tmp_path / "fifo").read_text()

    result = supervisor.wait()

    assert (result.reason, codes_of(result)) == ("timeout", [-9])


NEVER = float("inf")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((5.0, NEVER, False), (5.1, NEVER, False)),
        # It prints its traceback, cleans up, and exits after its peer.
        ((7.0, 5.0, False), (6.0, NEVER, False)),
        ((6.0, 4.9, False), (7.0, 5.0, False)),
        # The traceback was logged long before, and about something else.
        ((69.0, NEVER, False), (70.0, 5.0, False)),
        # A traceback that is read late counts no later than the end.
        ((5.0, 5.2, False), (5.1, NEVER, False)),
        # A peer saw the closed connection before the launcher was told of the kill.
        ((7.9, NEVER, True), (9.0, 5.0, False)),
        # Killed because the other had failed: the traceback is much older.
        ((9.0, 5.0, False), (8.5, NEVER, True)),
    ],
)
def test_the_time_of_a_failure(first, second):
    earlier, later = (
        failed_seconds(ended, traceback, was_killed=was_killed)
        for ended, traceback, was_killed in (first, second)
    )
    assert earlier < later
