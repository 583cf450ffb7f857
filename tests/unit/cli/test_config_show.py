"""`tfdist config show`: what it prints for each kind of environment."""

import json

import pytest

from tfdist.cluster.detect import explain
from tfdist_cli import config
from tfdist_cli.main import main

CLUSTER = {"chief": ["c:1"], "worker": ["a:1", "[fe80::1]:2"], "ps": ["p:1"]}


def tf_config(task_type, index, **jobs):
    """Return the text of a configuration."""
    task = {"type": task_type, "index": index}
    return json.dumps({"cluster": jobs or CLUSTER, "task": task})


@pytest.fixture
def show(monkeypatch, capsys):
    """Return what shows the cluster of an environment."""

    def show(env, *options):
        monkeypatch.setattr(config, "explain", lambda: explain(env))
        assert main(["config", "show", *options]) == 0
        return capsys.readouterr().out

    return show


def test_the_table(show):
    text = tf_config("worker", 1, chief=["c:1"], worker=["a:1", "b:2"], ps=["p:1"])

    assert show({"TF_CONFIG": text}) == (
        "| task     | rank | host | port |                 role | this process |\n"
        "| :------- | ---: | ---: | ---: | -------------------: | -----------: |\n"
        "| chief 0  |    0 |    c |    1 | trains, is the chief |              |\n"
        "| worker 0 |    1 |    a |    1 |               trains |              |\n"
        "| worker 1 |    2 |    b |    2 |               trains |         here |\n"
        "| ps 0     |    - |    p |    1 |      keeps variables |              |\n"
        "\n"
        "This is worker 1, rank 2 of 3.\n"
    )


def test_worker_0_takes_the_part_of_the_chief(show):
    out = show({"TF_CONFIG": tf_config("worker", 0, worker=["a:1", "b:1"])})

    assert out.count("trains, is the chief |         here |") == 1


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
    assert variables[0].split(maxsplit=1) == [
        "HOROVOD_RANK",
        "the rank of this process",
    ]
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


def test_json(show):
    env = {"TF_CONFIG": tf_config("ps", 0)}

    facts = json.loads(show(env, "--json"))
    assert (facts["task"], facts["rank"], facts["size"]) == ("ps 0", None, 3)
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

    assert "This is worker 0, rank 1 of 3.\n" in out
    assert out.endswith(f"Read by the resolver tf_config ({file}).\n")


@pytest.mark.parametrize("text", ["{", "", '{"cluster": {}}'])
def test_a_wrong_one_is_an_error(text, tmp_path, capsys):
    (tmp_path / "file").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["config", "show", str(tmp_path / "file")])

    assert capsys.readouterr().err.startswith("tfdist config show: error: TF_CONFIG ")
