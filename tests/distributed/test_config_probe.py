"""`tfdist config probe` as the processes of a job, each a task of its own."""

import json
import subprocess
import sys

SECONDS = 60
TFDIST = (sys.executable, "-c", "from tfdist_cli.main import main; exit(main())")
PROBE = (*TFDIST, "config", "probe", "--json")


def run(*command):
    """Run a program as three processes; return the exit code and the JSON of rank 0."""
    done = subprocess.run(
        [*TFDIST, "run", "-np", "3", "--no-tag-output", *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_all_reach_all():
    code, facts, err = run(*PROBE)

    names = ["worker 0", "worker 1", "worker 2"]
    assert (code, facts["all_reach"], facts["task"]) == (0, True, "worker 0")
    assert facts["rows"] == {
        one: {
            other: {"outcome": "reachable", "detail": ""}
            for other in names
            if other != one
        }
        for one in names
    }
    assert all(f"{name} has given its row to worker 0" in err for name in names[1:])


def test_a_task_that_ends_without_the_probe():
    script = 'if [ "$TFDIST_RANK" != 2 ]; then exec "$@"; fi'
    code, facts, err = run("bash", "-c", script, "bash", *PROBE, "--timeout", "5")

    assert (code, facts["all_reach"]) == (1, False)
    assert [*facts["rows"]] == ["worker 0", "worker 1"]
    for one, other in (("worker 0", "worker 1"), ("worker 1", "worker 0")):
        row = {to: reach["outcome"] for to, reach in facts["rows"][one].items()}
        assert row == {other: "reachable", "worker 2": "refused"}
    assert "failed with exit code 1" in err
