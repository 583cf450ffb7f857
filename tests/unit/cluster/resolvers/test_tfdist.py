import pytest

from tfdist.cluster.model import Cluster, Task
from tfdist.cluster.resolvers import TfdistResolver
from tfdist.cluster.tf_config import dumps

WORKERS = ("127.0.0.1:1", "127.0.0.1:2")
TWO = Cluster(workers=WORKERS, task=Task("worker", 1))
CHANGED = "^TF_CONFIG is not the one that `tfdist run` gave to this process. Received: "


def launched(cluster=TWO, **changes):
    env = {
        "TF_CONFIG": dumps(cluster),
        "TFDIST_RUN_ID": "5f2c",
        "TFDIST_RANK": "1",
        "TFDIST_SIZE": "2",
        **changes,
    }
    return {name: value for name, value in env.items() if value is not None}


def test_the_run_id_is_recognised():
    assert TfdistResolver().recognises(launched())
    assert not TfdistResolver().recognises(launched(TFDIST_RUN_ID=None))
    assert not TfdistResolver().recognises(launched(TFDIST_RUN_ID=""))


def test_the_cluster_is_read_from_tf_config():
    assert TfdistResolver().resolve(launched()) == TWO


def test_the_cluster_knows_its_run():
    assert TfdistResolver().resolve(launched()).run_id == "5f2c"


@pytest.mark.parametrize("cluster", [Cluster(), Cluster(workers=WORKERS[:1])])
def test_a_run_of_one_process(cluster):
    env = launched(cluster, TFDIST_RANK="0", TFDIST_SIZE="1")
    assert TfdistResolver().resolve(env) == cluster


@pytest.mark.parametrize(
    ("cluster", "found"),
    [
        (Cluster(workers=WORKERS), "rank 0, with 2 training"),
        (Cluster(), "rank 0, with 1 training"),
        (Cluster(chief="a:1", workers=("b:1", "c:1")), "rank 1, with 3 training"),
        (Cluster(workers=WORKERS, task=Task("evaluator", 1)), "evaluator 1, with 2"),
    ],
)
def test_a_tf_config_that_the_script_has_changed_is_refused(cluster, found):
    received = f"TFDIST_RANK=1 and TFDIST_SIZE=2, but TF_CONFIG says {found}"
    with pytest.raises(ValueError, match=f"{CHANGED}{received}.* Remove what sets"):
        TfdistResolver().resolve(launched(cluster))


ROLES = {"chief": "a:1", "workers": ("a:2", "a:3"), "ps": ("a:4",)}


def with_servers(task, **changes):
    """Return the environment of a task as the launcher makes it, then changed."""
    cluster = Cluster(**ROLES, task=task)
    names = {"TFDIST_TASK": str(task), "TFDIST_SIZE": "3", "TFDIST_RANK": None}
    if task.trains:
        names["TFDIST_RANK"] = str(cluster.rank)
    return launched(cluster, **names | changes)


@pytest.mark.parametrize(
    "task", [Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0)]
)
def test_every_task_of_a_job_with_parameter_servers(task):
    cluster = TfdistResolver().resolve(with_servers(task))

    assert cluster == Cluster(**ROLES, task=task)
    assert cluster.run_id == "5f2c"


@pytest.mark.parametrize(
    ("cluster", "found"),
    [
        (TWO, "worker 1, with 2"),
        (Cluster(**ROLES, task=Task("worker", 1)), "worker 1, with 3"),
        (Cluster(**ROLES, task=Task("chief", 0)), "chief 0, with 3"),
        (Cluster(), "worker 0, with 1"),
        (
            Cluster(workers=("a:2",), ps=("a:4",), task=Task("ps", 0)),
            "ps 0, with 1",
        ),
    ],
)
def test_a_tf_config_that_the_script_of_a_server_has_changed_is_refused(cluster, found):
    received = f"TFDIST_TASK=ps 0 and TFDIST_SIZE=3, but TF_CONFIG says {found}"
    env = with_servers(Task("ps", 0), TF_CONFIG=dumps(cluster))

    with pytest.raises(ValueError, match=f"{CHANGED}{received}.* Remove what sets"):
        TfdistResolver().resolve(env)


def test_a_worker_is_not_the_rank_that_it_would_be_without_a_chief():
    env = with_servers(
        Task("worker", 0),
        TF_CONFIG=dumps(Cluster(workers=("a:1", "a:2", "a:3"), task=Task("worker", 1))),
    )

    with pytest.raises(ValueError, match="says worker 1, with 3 training"):
        TfdistResolver().resolve(env)


@pytest.mark.parametrize("tf_config", [None, "", " "])
def test_a_tf_config_that_the_script_has_removed_is_refused(tf_config):
    message = (
        "^TF_CONFIG is not set any more, .* Received: TFDIST_RUN_ID without TF_CONFIG. "
        "Leave TF_CONFIG as it is, or unset TFDIST_RUN_ID too"
    )
    with pytest.raises(ValueError, match=message):
        TfdistResolver().resolve(launched(TF_CONFIG=tf_config))


@pytest.mark.parametrize("name", ["TFDIST_RANK", "TFDIST_SIZE"])
@pytest.mark.parametrize("value", ["", "one", "-1", "1.0", " 1", "²"])
def test_a_malformed_number_is_refused(name, value):
    message = (
        f"^{name} must be a whole number, .* Received: {name}='{value}'. Start the"
    )
    with pytest.raises(ValueError, match=message):
        TfdistResolver().resolve(launched(**{name: value}))


@pytest.mark.parametrize("name", ["TFDIST_RANK", "TFDIST_SIZE"])
def test_a_missing_number_is_refused(name):
    message = (
        f"^{name} must be a whole number, .* Received: no {name}. Start the program"
    )
    with pytest.raises(ValueError, match=message):
        TfdistResolver().resolve(launched(**{name: None}))


def test_a_malformed_tf_config_keeps_its_own_error():
    with pytest.raises(ValueError, match="^TF_CONFIG is not valid JSON"):
        TfdistResolver().resolve(launched(TF_CONFIG="{"))
