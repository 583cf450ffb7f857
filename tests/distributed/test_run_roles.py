"""`tfdist run --workers N --ps M` with real processes, from the outside."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SECONDS = 60
TFDIST = (sys.executable, "-c", "from tfdist_cli.main import main; exit(main())", "run")
FIFOS = ("life", "ready", "go")

# The chief holds the pipe `life`, and the others notice its end, as servers do by its
# address. Who tells something waits for somebody who wants to know.
PRELUDE = """\
import json, os, signal, sys
from tfdist.cluster import detect

cluster = detect()
task = cluster.task
folder = os.path.dirname(__file__)
life = os.open(f"{folder}/life", os.O_RDWR if task.type == "chief" else os.O_RDONLY)

def tell(name):
    with open(f"{folder}/{name}", "w") as file:
        file.write("!")

def wait_for(name, count=1):
    pipe = os.open(f"{folder}/{name}", os.O_RDWR)
    for _ in range(count):
        assert os.read(pipe, 1) == b"!"

def serve():
    assert os.read(life, 1) == b""
    print("leaves", flush=True)
    sys.exit(0)

print("is", task, os.getpid(), cluster.address, flush=True)
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script: what all share, then what is given."""

    def write(text):
        for name in FIFOS:
            os.mkfifo(tmp_path / name)
        path = tmp_path / "train.py"
        path.write_text(PRELUDE + text)
        return str(path)

    return write


@contextlib.contextmanager
def started(*arguments, workers=2, ps=1):
    """Start a job, and kill it in the end if it is still there."""
    process = subprocess.Popen(
        [*TFDIST, "--workers", str(workers), "--ps", str(ps), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(*arguments, **counts):
    """Run a job to its end; return exit code, output and errors."""
    with started(*arguments, **counts) as process:
        return finish(process)


def finish(process, printed=""):
    """Wait for the end of a job, and see that nothing of it is left."""
    out, err = process.communicate(timeout=SECONDS)
    for _, pid, _ in introductions(printed + out):
        assert_end(pid)
    return process.returncode, printed + out, err


def introductions(text):
    """Return task, number of the process and address, as each has told them."""
    found = re.findall(r"^\[(.+)\] is (\w+) (\d) (\d+) (\S+)$", text, re.MULTILINE)
    for tag, type_, index, _, _ in found:
        assert tag == ("chief" if type_ == "chief" else f"{type_} {index}")
    return [(tag, int(pid), address) for tag, _, _, pid, address in found]


def assert_end(pid):
    """Wait until a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        ended = select.select([descriptor], [], [], SECONDS)[0]
        os.close(descriptor)
        assert ended, f"process {pid} was left behind"


def read_until(stream, words):
    """Return what is printed up to the line with these words."""
    lines = []
    while not lines or words not in lines[-1]:
        lines.append(stream.readline())
        assert lines[-1], f"no {words!r} in {''.join(lines)}"
    return "".join(lines)


# -- who the processes are --------------------------------------------------------


def test_each_process_knows_its_task(script, tmp_path):
    text = (
        "import tfdist\n"
        "ranks = [tfdist.rank(), tfdist.size()] if task.trains else []\n"
        "print(json.dumps([cluster.jobs, cluster.run_id, ranks]), flush=True)\n"
        "if task.type != 'chief':\n"
        "    tell('ready'); serve()\n"
        "wait_for('ready', 3)\n"
    )
    logs = tmp_path / "logs"

    code, _, err = run("--output-dir", str(logs), script(text))

    assert (code, err) == (0, "")
    printed = {log.name: log.read_text().splitlines() for log in logs.iterdir()}
    facts = {name: json.loads(lines[1]) for name, lines in printed.items()}
    assert {name: ranks for name, (_, _, ranks) in facts.items()} == {
        "chief.log": [0, 2],
        "worker.0.log": [1, 2],
        "worker.1.log": [2, 2],
        "ps.0.log": [],
    }
    jobs, run_id, _ = facts["chief.log"]
    assert all(other[:2] == [jobs, run_id] for other in facts.values())
    assert [(job, len(jobs[job])) for job in jobs] == [
        ("chief", 1),
        ("worker", 2),
        ("ps", 1),
    ]
    assert len({address for job in jobs.values() for address in job}) == 4


@pytest.mark.requires("taskset")
def test_an_evaluator_knows_the_job_and_does_not_count():
    code = """
import os, tfdist.cluster
cluster = tfdist.cluster.detect()
print("is", cluster.task, "of", cluster.size, sorted(cluster.jobs), flush=True)
exit(3 if cluster.task.type == "evaluator" else 0)
"""
    roles = ["--workers", "1", "--ps", "1", "--evaluator"]
    done = subprocess.run(
        [*TFDIST, *roles, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    jobs = "['chief', 'ps', 'worker']"
    assert sorted(done.stdout.splitlines()) == [
        f"[{name}] is {task} of 2 {jobs}"
        for name, task in (
            ("chief", "chief 0"),
            ("evaluator 0", "evaluator 0"),
            ("ps 0", "ps 0"),
            ("worker 0", "worker 0"),
        )
    ]


def test_a_dry_run_can_be_pasted(tmp_path):
    script = tmp_path / "who.py"
    script.write_text("from tfdist.cluster import detect; print(detect().task)")

    code, out, err = run("--dry-run", str(script))

    pasted = [
        subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=SECONDS
        ).stdout
        for line in out.splitlines()
    ]
    assert (code, err) == (0, "")
    assert pasted == ["chief 0\n", "worker 0\n", "worker 1\n", "ps 0\n"]


# -- good ends --------------------------------------------------------------------


def test_the_run_ends_with_the_chief(script):
    """Workers notice that by themselves; the server must be asked, and then told."""
    text = (
        "if task.type == 'chief':\n"
        "    wait_for('ready', 2)\n"
        "elif task.type == 'worker':\n"
        "    tell('ready'); serve()\n"
        "else:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    while True: signal.pause()\n"
    )

    code, out, err = run(script(text))

    assert (code, err) == (0, "")
    assert {"[worker 0] leaves", "[worker 1] leaves"} < set(out.splitlines())


def test_a_server_that_ends_well_before_the_chief_is_no_failure(script):
    text = (
        "if task.type == 'ps':\n"
        "    sys.exit(0)\n"
        "wait_for('go') if task.type == 'chief' else serve()\n"
    )
    path = script(text)

    with started(path, workers=1) as process:
        line = process.stderr.readline()
        with open(os.path.join(os.path.dirname(path), "go"), "w") as file:
            file.write("!")
        code, _, err = finish(process)

    assert (code, err) == (0, "")
    assert line == (
        "tfdist run: ps 0 ended well; it is not started again, and the chief goes on "
        "without it.\n"
    )


# -- workers that fail ------------------------------------------------------------


def test_a_worker_that_is_killed_is_started_again(script):
    text = (
        "mark = f'{folder}/mark'\n"
        "if task.type == 'chief':\n"
        "    wait_for('ready')\n"
        "    print('ready', flush=True)\n"
        "    wait_for('go')\n"
        "elif str(task) == 'worker 1':\n"
        "    again = os.path.exists(mark)\n"
        "    open(mark, 'w').close()\n"
        "    tell('go' if again else 'ready')\n"
        "serve() if task.type != 'chief' else None\n"
    )

    with started(script(text)) as process:
        printed = read_until(process.stdout, "[chief] ready")
        [(_, first, _)] = [
            who for who in introductions(printed) if who[0] == "worker 1"
        ]
        os.kill(first, signal.SIGKILL)
        code, out, err = finish(process, printed)

    assert (code, err) == (
        0,
        "tfdist run: worker 1 was killed by SIGKILL (signal 9); it is started again "
        "(1 of 3).\n",
    )
    one, other = [who for who in introductions(out) if who[0] == "worker 1"]
    assert one[1] != other[1]
    assert one[2] == other[2]


def test_without_restarts_the_run_goes_on_while_a_worker_is_left(script):
    text = (
        "if str(task) == 'worker 1':\n"
        "    sys.exit(3)\n"
        "wait_for('go') if task.type == 'chief' else serve()\n"
    )
    path = script(text)

    with started("--restarts", "1", path) as process:
        lines = read_until(process.stderr, "goes on without it").splitlines()
        with open(os.path.join(os.path.dirname(path), "go"), "w") as file:
            file.write("!")
        code, out, err = finish(process)

    assert (code, err) == (0, "")
    assert lines == [
        "tfdist run: worker 1 failed with exit code 3; it is started again (1 of 1).",
        "tfdist run: worker 1 failed with exit code 3; it is not started again "
        "(1 of 1 restarts are used), and the run goes on without it.",
    ]
    tasks = [who for who, _, _ in introductions(out)]
    assert sorted(tasks) == ["chief", "ps 0", "worker 0", "worker 1", "worker 1"]


def test_the_run_fails_with_the_last_worker(script):
    text = "if task.type == 'worker':\n    sys.exit(7)\nsignal.pause()\n"

    code, _, err = run("--restarts", "2", script(text), workers=1)

    assert code == 7
    *restarts, last = [line for line in err.splitlines() if "exit code" in line]
    assert [line.split("; ")[1] for line in restarts] == [
        "it is started again (1 of 2).",
        "it is started again (2 of 2).",
    ]
    assert re.fullmatch(
        r"tfdist run: worker 0 failed with exit code 7 after \d+\.\d s; "
        r"chief and ps 0 were still running and were ended\.",
        last,
    )


# -- runs that fail ---------------------------------------------------------------


def test_a_server_that_is_killed_ends_the_run(script):
    """The chief fails for want of it, and is not to blame."""
    text = (
        "if task.type == 'chief':\n"
        "    wait_for('ready')\n"
        "    os.kill(int(open(f'{folder}/pid').read()), signal.SIGKILL)\n"
        "    raise ConnectionError('no server')\n"
        "if task.type == 'ps':\n"
        "    with open(f'{folder}/pid', 'w') as file: file.write(str(os.getpid()))\n"
        "    tell('ready')\n"
        "serve()\n"
    )

    code, _, err = run(script(text))

    assert code == 137
    assert err.splitlines()[-1].startswith("tfdist run: ps 0 was killed by SIGKILL")


@pytest.mark.parametrize("code", [1, 9])
def test_a_server_that_fails_ends_the_run(script, code):
    text = f"if task.type == 'ps':\n    sys.exit({code})\nsignal.pause()\n"

    returned, _, err = run(script(text), ps=2)

    assert returned == code
    assert re.match(rf"tfdist run: ps \d failed with exit code {code} after", last(err))


def test_a_chief_that_fails_is_named_with_its_last_lines(script):
    text = (
        "if task.type == 'chief':\n"
        "    wait_for('ready')\n"
        "    raise RuntimeError('no more data')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "tell('ready') if str(task) == 'worker 0' else None\n"
        "serve()\n"
    )

    code, out, err = run(script(text))

    assert code == 1
    assert "[worker 0] leaves" in out
    assert "tfdist run: the last lines of chief:" in err
    *_, before, _ = err.splitlines()
    assert before == "    RuntimeError: no more data"
    assert last(err).startswith("tfdist run: chief failed with exit code 1 after")


def last(text):
    return text.splitlines()[-1]


# -- the end from outside ---------------------------------------------------------


def test_ctrl_c_ends_all_and_starts_nobody_again(script):
    path = script("signal.pause()\n")

    with started(path) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process, printed)

    assert code == 130
    assert len(introductions(out)) == 4
    assert "started again" not in err
    assert last(err) == (
        "tfdist run: SIGINT ended the run; "
        "chief, worker 0, worker 1 and ps 0 were still running and were ended."
    )


def test_time_is_up(script):
    code, _, err = run("--timeout", "2", script("signal.pause()\n"), workers=1)

    assert (code, err) == (
        124,
        "tfdist run: the run did not end within 2 s; "
        "chief, worker 0 and ps 0 were still running and were ended.\n",
    )


def test_nothing_outlives_a_launcher_that_is_killed(script):
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()\n"

    with started(script(text)) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.kill()
        for _, pid, _ in introductions(printed):
            assert_end(pid)

    assert len(introductions(printed)) == 4
