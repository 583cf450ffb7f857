"""`tfdist config probe`: what it prints of a matrix, and what it refuses."""

import contextlib
import json
import socket

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.cluster.explanation import explain
from tfdist.cluster.probe import ReachMatrix
from tfdist.cluster.reach import Reach
from tfdist.launch.ports import free_ports
from tfdist_cli import config_probe
from tfdist_cli.main import main

CLUSTER = Cluster(chief="c:1", workers=("a:1",), ps=("p:1",), task=Task("chief", 0))
OPEN = Reach("reachable")
SILENT = Reach("timed out", "no word")


def row(*names, **reaches):
    """Return a row in which these are reachable, and others are not."""
    return {name: OPEN for name in names} | reaches


@pytest.fixture
def show(monkeypatch, tmp_path, capsys):
    """Return what prints a matrix: the exit code, and both outputs."""
    text = {"cluster": CLUSTER.jobs, "task": {"type": "chief", "index": 0}}
    file = tmp_path / "tf_config.json"
    file.write_text(json.dumps(text))

    def show(matrix, *options):
        @contextlib.contextmanager
        def probe(cluster, *, timeout_seconds):
            assert (cluster, timeout_seconds) == (CLUSTER, 30.0)
            yield matrix

        monkeypatch.setattr(config_probe, "probe", probe)
        code = main(["config", "probe", str(file), *options])
        return code, *capsys.readouterr()

    return show


def matrix_of(rows, task=CLUSTER.task, **others):
    cluster = Cluster(chief="c:1", workers=("a:1",), ps=("p:1",), task=task)
    return ReachMatrix(cluster, rows, CLUSTER.task, **others)


ALL = {
    "chief 0": row("worker 0", "ps 0"),
    "worker 0": row("chief 0", "ps 0"),
    "ps 0": row("chief 0", "worker 0"),
}
SOME = {
    "chief 0": row("worker 0") | {"ps 0": SILENT},
    "worker 0": row("chief 0") | {"ps 0": SILENT},
}


def test_all_reach_all(show):
    assert show(matrix_of(ALL)) == (
        0,
        "| from \\ to |   chief 0 |  worker 0 |      ps 0 |\n"
        "| :-------- | --------: | --------: | --------: |\n"
        "| chief 0   |         - | reachable | reachable |\n"
        "| worker 0  | reachable |         - | reachable |\n"
        "| ps 0      | reachable | reachable |         - |\n"
        "\n"
        "All 3 tasks reach each other.\n",
        "",
    )


def test_what_stands_in_the_way(show):
    code, out, err = show(matrix_of(SOME))

    assert (code, err) == (1, "")
    assert "| chief 0   |         - | reachable | timed out |" in out
    assert "| ps 0      |         ? |         ? |         - |" in out
    *_, obstacle, missing, last = out.splitlines()
    assert obstacle.startswith(
        "ps 0 (p:1), from chief 0, worker 0: timed out (no word). See whether the host"
    )
    assert missing == (
        "ps 0 (p:1) has not given its row: see whether it was started, and what it "
        "prints itself."
    )
    assert last == "2 of 6 ways are open."


def test_two_processes_of_one_task(show):
    code, out, _ = show(matrix_of(ALL, doubles=frozenset({"worker 0"})))

    assert code == 1
    assert (
        "Several processes call themselves worker 0: give each its own task index."
        in out
    )


def test_who_is_not_the_collector_prints_no_table(show):
    rows = {"ps 0": ALL["ps 0"]}

    assert show(matrix_of(rows, Task("ps", 0), ended=True)) == (
        0,
        "",
        "ps 0 has given its row to chief 0 (c:1).\n",
    )
    assert show(matrix_of(rows, Task("ps", 0), ended=False), "--json")[:2] == (1, "")


def test_who_cannot_reach_the_collector_prints_its_own_row(show):
    rows = {"ps 0": row("worker 0") | {"chief 0": Reach("refused")}}
    code, out, err = show(matrix_of(rows, Task("ps", 0)))

    assert code == 1
    assert err == (
        "ps 0 could not give its row to chief 0 (c:1), which prints the whole table. "
        "This is what it has seen itself.\n"
    )
    lines = out.splitlines()
    assert lines[2] == "| ps 0      | refused | reachable |    - |"
    assert lines[4].startswith("chief 0 (c:1), from ps 0: refused. The host is there")
    assert lines[5:] == ["1 of 2 ways are open."]


def test_json(show):
    code, out, _ = show(matrix_of(SOME), "--json")

    facts = json.loads(out)
    assert (code, facts["all_reach"], facts["task"]) == (1, False, "chief 0")
    assert facts["tasks"] == {"chief 0": "c:1", "worker 0": "a:1", "ps 0": "p:1"}
    assert [*facts["rows"]] == ["chief 0", "worker 0"]
    assert facts["rows"]["chief 0"]["ps 0"] == {
        "outcome": "timed out",
        "detail": "no word",
    }
    assert facts["several_processes"] == []


def environment(monkeypatch, env):
    monkeypatch.setattr(config_probe, "explain", lambda: explain(env))


def refusal(capsys, *options):
    """Return the error of a command that is refused."""
    with pytest.raises(SystemExit, match="2"):
        main(["config", "probe", *options])
    return capsys.readouterr().err


def tf_config(*workers, **task):
    task = {"type": "worker", "index": 0, **task}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def test_a_process_alone_in_its_cluster(monkeypatch, capsys):
    environment(monkeypatch, tf_config(f"127.0.0.1:{free_ports(1)[0]}"))

    assert main(["config", "probe"]) == 0
    assert capsys.readouterr().out.endswith("\nThere is no other task.\n")


def test_a_port_in_use(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        environment(monkeypatch, tf_config(address))

        assert main(["config", "probe"]) == 1

    error = capsys.readouterr().err
    assert error.startswith("tfdist config probe: error: This process cannot listen at")
    assert f"worker 0 ({address})" in error


def test_an_evaluator_without_an_address(monkeypatch, capsys):
    environment(monkeypatch, tf_config("a:1", type="evaluator"))

    assert main(["config", "probe"]) == 0
    assert capsys.readouterr().err == (
        "evaluator 0 has no address in the cluster: nobody calls it, and it calls "
        "nobody. There is nothing to probe here.\n"
    )


def test_no_cluster(monkeypatch, capsys):
    environment(monkeypatch, {})

    assert (
        "There is no cluster to probe. Received: what describes no cluster. Set "
        "TF_CONFIG, or give a file with its value"
    ) in refusal(capsys)


def test_a_launcher_without_addresses(monkeypatch, capsys):
    env = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
    env |= {"HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
    environment(monkeypatch, env)

    assert "the environment of horovodrun, which tells no addresses. Set TF_" in (
        refusal(capsys)
    )


def test_a_wrong_cluster(monkeypatch, capsys):
    environment(monkeypatch, tf_config("a"))

    assert "TF_CONFIG cluster.worker[0] has no port." in refusal(capsys)


def test_a_file_that_is_not_there(capsys):
    assert "FILE must be a file that can be read." in refusal(capsys, "nowhere.json")


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan"])
def test_a_timeout_that_is_none(monkeypatch, capsys, seconds):
    environment(monkeypatch, tf_config("a:1"))

    assert (
        f"--timeout must be a positive number of seconds. Received: {seconds}. Leave "
        "it out for 30."
    ) in refusal(capsys, f"--timeout={seconds}")


def test_ctrl_c(monkeypatch):
    def interrupted(cluster, *, timeout_seconds):
        raise KeyboardInterrupt

    environment(monkeypatch, tf_config("a:1"))
    monkeypatch.setattr(config_probe, "probe", interrupted)

    assert main(["config", "probe"]) == 130
