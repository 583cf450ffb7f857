import pytest

from tfdist.cluster.model import Cluster, Task

WORKERS = ("a:1", "B:1", "a:2", "b:2")


@pytest.mark.parametrize(
    ("chief", "task", "rank", "local_rank", "local_size"),
    [
        (None, Task("worker", 0), 0, 0, 2),
        (None, Task("worker", 3), 3, 1, 2),
        ("c:1", Task("chief", 0), 0, 0, 1),
        ("c:1", Task("worker", 0), 1, 0, 2),
        ("c:1", Task("worker", 3), 4, 1, 2),
    ],
)
def test_ranks_count_the_chief_then_the_workers(
    chief, task, rank, local_rank, local_size
):
    servers = {"ps": ("a:3",), "evaluators": ("b:3",)}
    cluster = Cluster(chief=chief, workers=WORKERS, task=task, **servers)
    addresses = (chief, *WORKERS) if chief else WORKERS

    assert (cluster.rank, cluster.size) == (rank, len(addresses))
    assert (cluster.local_rank, cluster.local_size) == (local_rank, local_size)
    assert cluster.is_chief is (rank == 0)
    assert cluster.addresses == addresses
    assert cluster.address == addresses[rank]
    assert cluster.task_of(rank) == task
    assert cluster.is_distributed


def test_hosts_are_the_same_in_every_spelling():
    local = ("[::1]:1", "[0:0:0:0:0:0:0:1]:2")
    assert Cluster(workers=local, task=Task("worker", 1)).local_rank == 1


def test_parameter_servers_make_one_worker_distributed_and_evaluators_do_not():
    assert Cluster(workers=("a:1",), ps=("a:2",)).is_distributed
    assert not Cluster(workers=("a:1",), evaluators=("a:2",)).is_distributed


@pytest.mark.parametrize("task", [Task("ps", 0), Task("evaluator", 1)])
@pytest.mark.parametrize("name", ["rank", "local_rank", "local_size"])
def test_a_task_that_does_not_train_has_no_rank(task, name):
    evaluators = ("e:1", "e:2")
    cluster = Cluster(workers=WORKERS, ps=("p:1",), evaluators=evaluators, task=task)

    assert not cluster.is_chief
    assert cluster.size == 4
    assert cluster.address == cluster.jobs[task.type][task.index]
    message = f"^Only the chief and the workers have a rank .*: task={task}. Ask"
    with pytest.raises(ValueError, match=message):
        getattr(cluster, name)


@pytest.mark.parametrize(
    "cluster", [Cluster(), Cluster(workers=WORKERS, task=Task("evaluator", 2))]
)
def test_no_address_is_an_error(cluster):
    with pytest.raises(ValueError, match="no address in its cluster. Received: .* Ask"):
        _ = cluster.address


@pytest.mark.parametrize("rank", [-1, 4])
def test_task_of_refuses_an_impossible_rank(rank):
    message = f"rank must be from 0 to 3. Received: rank={rank}. Count the chief"
    with pytest.raises(ValueError, match=message):
        Cluster(workers=WORKERS).task_of(rank)


@pytest.mark.parametrize(
    ("job_type", "index", "error", "message"),
    [
        ("master", 0, ValueError, "task.type must be one of chief, worker, ps, eval"),
        (["ps"], 0, ValueError, "task.type must be one of chief, worker, ps, evalu"),
        ("worker", "0", TypeError, "task.index must be an integer. Received: index='0"),
        ("worker", True, TypeError, "task.index must be an integer. Received: index=T"),
        ("worker", -1, ValueError, "task.index must not be negative. Received: index="),
    ],
)
def test_an_impossible_task_is_refused(job_type, index, error, message):
    with pytest.raises(error, match=message):
        Task(job_type, index)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ps": "a:1"}, TypeError, 'ps must be a tuple of "host:port" strings. Receiv'),
        ({"workers": ["a:1"]}, TypeError, "workers must be a tuple of .* Received: "),
        ({"workers": (1,)}, TypeError, r"cluster\.worker\[0\] must be a string"),
        ({"workers": (["a:1"],)}, TypeError, r"cluster\.worker\[0\] must be a string"),
        ({"chief": ["a:1"]}, TypeError, r"cluster\.chief\[0\] must be a string"),
        ({"task": ("worker", 0)}, TypeError, "task must be a Task. Received: task=.'w"),
        ({"chief": "c"}, ValueError, r"cluster\.chief\[0\] has no port"),
        ({"task": Task("worker", 4)}, ValueError, "task.index must be from 0 to 3"),
    ],
)
def test_an_impossible_cluster_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Cluster(**{"workers": WORKERS, **arguments})
