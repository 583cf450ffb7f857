"""`tfdist config check` and `show`: what they read and print, and their exit codes."""

import json
import os
import subprocess
import sys

import pytest

import tfdist
from tfdist_cli.main import main

RIGHT = {
    "cluster": {"worker": ["a:2222", "b:2222"]},
    "task": {"type": "worker", "index": 1},
}
CLUSTER = {"chief": ["c:1"], "worker": ["a:1", "[fe80::1]:2"], "ps": ["p:1"]}


def tf_config(task_type, index, **jobs):
    """Return the text of a configuration."""
    task = {"type": task_type, "index": index}
    return json.dumps({"cluster": jobs or CLUSTER, "task": task})


@pytest.fixture
def check(tmp_path, capsys):
    """Return the function that checks a configuration: exit code and output."""

    def check(config, *options):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "file").write_text(text)
        code = main(["config", "check", str(tmp_path / "file"), *options])
        return code, capsys.readouterr().out

    return check


@pytest.fixture
def show(monkeypatch, printed):
    """Return the function that shows the cluster of an environment."""

    def show(env, *options):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return printed("config", "show", *options)

    return show


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("{}", "no addresses; this process trains alone"),
        (json.dumps(RIGHT), "2 workers; this is worker 1, rank 1 of 2"),
        (
            tf_config("worker", 1),
            "1 chief, 2 workers, 1 parameter server; this is worker 1, rank 2 "
            "(tfdist.size() is 2)",
        ),
        (
            tf_config("ps", 0),
            "1 chief, 2 workers, 1 parameter server; this is ps 0, which has no rank",
        ),
    ],
)
def test_a_right_one(check, text, described):
    assert check(text) == (0, f"TF_CONFIG is right: {described}.\n")


def test_all_errors(check):
    wrong = {**RIGHT, "cluster": {"worker": ["a", "b:0"]}}

    assert check(wrong) == (
        1,
        "error: TF_CONFIG cluster.worker[0] has no port. Received: 'a'.\n"
        "  Why: The others could not connect to this process, and would wait.\n"
        '  Fix: Write it as "host:port", for example "node1:2222".\n'
        "error: TF_CONFIG cluster.worker[1] must end in a port from 1 to 65535. "
        "Received: 'b:0'.\n"
        "  Why: The others could not connect to this process, and would wait.\n"
        "  Fix: Use a port that is free on that host, for example 2222.\n"
        "TF_CONFIG has 2 errors.\n",
    )


def test_warnings_alone(check):
    code, out = check({**RIGHT, "cluster": {"worker": ["a:2222", "b:40000"]}})

    assert code == 0
    assert out.startswith("warning: TF_CONFIG cluster.worker[1] has a port from the")
    assert out.endswith(
        "\nTF_CONFIG has no error and 1 warning: 2 workers; this is worker 1, rank 1 "
        "of 2.\n"
    )


def test_names_are_looked_up_when_asked_for(check):
    unknown = {**RIGHT, "cluster": {"worker": ["a.invalid:2222", "b.invalid:2222"]}}

    code, out = check(unknown, "--resolve")
    assert code == 0
    assert out.count("does not resolve on this machine. Received: 'a.invalid' (") == 1
    assert "TF_CONFIG has no error and 2 warnings: " in out

    code, out = check({**unknown, "rpc_layer": 0}, "--resolve")
    assert code == 1
    assert out.endswith("\nTF_CONFIG has 1 error and 2 warnings.\n")


def test_the_findings_as_json(check):
    code, out = check({**RIGHT, "x": 0}, "--json")

    assert code == 1
    found = json.loads(out)
    assert (found["errors"], found["warnings"]) == (1, 0)
    (finding,) = found["findings"]
    assert finding.pop("problem") == 'has an unknown key "x".'
    assert finding.pop("received") == "cluster, task, x"
    assert finding.pop("effect") == "not used"
    assert (finding.pop("place"), finding.pop("severity")) == ("TF_CONFIG", "error")
    assert finding.keys() == {"why", "fix"}
    assert check(RIGHT, "--json")[0] == 0


def test_the_variable_of_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{")

    assert main(["config", "check"]) == 1
    assert "TF_CONFIG is not valid JSON" in capsys.readouterr().out


MAIN = "import sys; from tfdist_cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("encoding", "key", "shown"),
    [
        ("utf-8", b"\xc3\xa9", "\xe9".encode()),
        ("utf-8", b"\xff", b"\\udcff"),
        ("ascii", b"\xc3\xa9", b"\\xe9"),
    ],
)
def test_any_characters_of_the_standard_input_are_printed(encoding, key, shown):
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "config", "check", "-"],
        input=b'{"%b": 0}' % key,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )

    assert (done.returncode, done.stderr) == (1, b"")
    assert b'has an unknown key "%b"' % shown in done.stdout


def test_a_wrong_file_has_no_table(folder, refusal):
    (folder / "file").write_text("{")

    error = refusal("config", "show", "file")
    assert error.startswith("tfdist config show: error: TF_CONFIG is not valid JSON")


def test_the_table(show):
    text = tf_config("worker", 1, chief=["c:1"], worker=["a:1", "b:2"])

    assert show({"TF_CONFIG": text}) == (
        "| task     | rank | host | port |                 role | this process |\n"
        "| :------- | ---: | ---: | ---: | -------------------: | -----------: |\n"
        "| chief 0  |    0 |    c |    1 | trains, is the chief |              |\n"
        "| worker 0 |    1 |    a |    1 |               trains |              |\n"
        "| worker 1 |    2 |    b |    2 |               trains |         here |\n"
        "\n"
        "This is worker 1, rank 2 of 3.\n"
    )


def test_a_chief_with_parameter_servers_does_not_train(show):
    text = tf_config("worker", 1, chief=["c:1"], worker=["a:1", "b:2"], ps=["p:1"])

    assert show({"TF_CONFIG": text}) == (
        "| task     | rank | host | port |                      role | this process |\n"
        "| :------- | ---: | ---: | ---: | ------------------------: | -----------: |\n"
        "| chief 0  |    0 |    c |    1 | coordinates, is the chief |              |\n"
        "| worker 0 |    1 |    a |    1 |                    trains |              |\n"
        "| worker 1 |    2 |    b |    2 |                    trains |         here |\n"
        "| ps 0     |    - |    p |    1 |           keeps variables |              |\n"
        "\n"
        "This is worker 1, rank 2 (tfdist.size() is 2).\n"
    )
    # The environment is that of worker 1.
    facts = json.loads(show({}, "--json"))
    assert facts["size"] == tfdist.size() == 2


def test_an_evaluator_that_is_not_listed(show):
    out = show({"TF_CONFIG": tf_config("evaluator", 0, worker=["a:1", "b:1"])})

    assert "here" not in out
    assert out.endswith("\nThis is evaluator 0, which has no rank.\n")


def test_alone(show):
    assert show({}) == "This process is alone: rank 0 of 1.\n"
    assert show({}, "--explain") == (
        "This process is alone: rank 0 of 1.\nNo variable describes a cluster.\n"
    )


def test_a_launcher_that_tells_no_addresses(show):
    env = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
    env |= {"HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}

    assert show(env) == (
        "This is rank 1 of 2, as horovodrun says, which gives no addresses.\n"
    )
    _, source, *variables = show(env, "--explain").splitlines()
    assert source == "No variable gives addresses; horovodrun has set the rank:"
    told = variables[0].split(maxsplit=1)
    assert told == ["HOROVOD_RANK", "the rank of this process"]
    assert {line.split()[0] for line in variables} == {*env}
    facts = json.loads(show(env, "--json"))
    assert (facts["rank"], facts["size"], facts["tasks"]) == (1, 2, [])


def test_where_it_was_read(show):
    env = {"TF_CONFIG": tf_config("worker", 1), "TFDIST_RUN_ID": "5f2c"}
    env |= {"TFDIST_RANK": "2", "TFDIST_SIZE": "3"}

    *_, source, run, config, rank, size, others = show(env, "--explain").splitlines()

    assert source == "Read by the resolver tfdist (tfdist run):"
    assert run == "  TFDIST_RUN_ID  that `tfdist run` has started it, and in which run"
    assert config.split()[:3] == ["TF_CONFIG", "the", "addresses"]
    assert [rank.split()[0], size.split()[0]] == ["TFDIST_RANK", "TFDIST_SIZE"]
    assert others.startswith("Not asked, as they come later: tf_config")


def test_the_cluster_as_json(show):
    env = {"TF_CONFIG": tf_config("ps", 0)}

    facts = json.loads(show(env, "--json"))
    assert (facts["task"], facts["rank"], facts["size"]) == ("ps 0", None, 2)
    assert facts["tasks"][2] == {
        "task": "worker 1",
        "rank": 2,
        "host": "fe80::1",
        "port": 2,
        "role": "trains",
        "is_this": False,
    }
    assert [fact["is_this"] for fact in facts["tasks"]] == [False, False, False, True]
    assert "resolver" not in facts

    facts = json.loads(show(env, "--json", "--explain"))
    assert (facts["resolver"], facts["launcher"]) == ("tf_config", "TF_CONFIG")
    assert (facts["variables"], facts["not_asked"]) == (["TF_CONFIG"], [])
    assert facts["tells"]["TF_CONFIG"].startswith("the addresses of all tasks")


def test_a_file(show, tmp_path):
    file = tmp_path / "file"
    file.write_text(tf_config("worker", 0))

    out = show({}, str(file), "--explain")

    assert "This is worker 0, rank 1 (tfdist.size() is 2).\n" in out
    assert out.endswith(f"Read by the resolver tf_config ({file}).\n")
