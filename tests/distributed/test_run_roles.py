"""`tfdist run --workers N --ps M` with real processes, from the outside."""

import json
import os
import re
import signal
import sys

import pytest
from launcher import SECONDS, TFDIST, assert_end, started
from launcher import run as to_its_end

pytestmark = pytest.mark.slow

FIFOS = ("life", "ready")

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


ROLES = (*TFDIST, "--workers", "2", "--ps", "1")


def run(*arguments):
    """Run a job to its end; return exit code, output and errors."""
    with started(*arguments, command=ROLES) as process:
        return finish(process)


def finish(process, printed=""):
    """Wait for the end of a job, and see that nothing of it is left."""
    out, err = process.communicate(timeout=SECONDS)
    assert_end(pid for _, pid, _ in introductions(printed + out))
    return process.returncode, printed + out, err


def introductions(text):
    """Return task, number of the process and address, as each has told them."""
    found = re.findall(r"^\[(.+)\] is (\w+) (\d) (\d+) (\S+)$", text, re.MULTILINE)
    for tag, type_, index, _, _ in found:
        assert tag == ("chief" if type_ == "chief" else f"{type_} {index}")
    return [(tag, int(pid), address) for tag, _, _, pid, address in found]


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
    printed = {log.name: log.read_text().splitlines() for log in logs.glob("*.log")}
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
def test_an_evaluator_knows_the_job_and_does_not_count(tmp_path):
    # The chief ends last, as the others would be ended with it.
    code = """
import os, pathlib, time, tfdist.cluster
cluster = tfdist.cluster.detect()
print("is", cluster.task, "of", cluster.size, sorted(cluster.jobs), flush=True)
pathlib.Path(f"{cluster.task}.here").touch()
while cluster.task.type == "chief" and len([*pathlib.Path().glob("*.here")]) < 4:
    time.sleep(0.02)
exit(3 if cluster.task.type == "evaluator" else 0)
"""
    roles = ["--workers", "1", "--ps", "1", "--evaluator"]
    done = to_its_end(*roles, sys.executable, "-c", code, cwd=tmp_path)

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

    pasted = [to_its_end("-c", line, command=("bash",)) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [done.stdout for done in pasted] == [
        "chief 0\n",
        "worker 0\n",
        "worker 1\n",
        "ps 0\n",
    ]


def test_ctrl_c_ends_all_and_starts_nobody_again(script):
    path = script("signal.pause()\n")

    with started(path, command=ROLES) as process:
        printed = "".join(process.stdout.readline() for _ in range(4))
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process, printed)

    assert code == 130
    assert len(introductions(out)) == 4
    assert "started again" not in err
    assert err.splitlines()[-1] == (
        "tfdist run: SIGINT ended the run; "
        "chief, worker 0, worker 1 and ps 0 were still running and were ended."
    )
