import dataclasses

import pytest

from tfdist.cluster.model import Cluster, Task

WORKERS = ("a:1", "b:1", "a:2", "b:2")


def test_a_process_alone():
    alone = Cluster()

    assert alone.task == Task("worker", 0)
    assert (alone.rank, alone.size) == (0, 1)
    assert (alone.local_rank, alone.local_size) == (0, 1)
    assert alone.is_chief
    assert not alone.is_distributed
    assert alone.addresses == ()
    assert alone.jobs == {}
    assert alone.task_of(0) == Task("worker", 0)


@pytest.mark.parametrize(
    ("index", "local_rank"),
    [
        (0, 0),  # a:1, the first on a
        (1, 0),  # b:1, the first on b
        (2, 1),  # a:2, the second on a
        (3, 1),  # b:2, the second on b
    ],
)
def test_workers_are_ranked_in_order(index, local_rank):
    cluster = Cluster(workers=WORKERS, task=Task("worker", index))

    assert (cluster.rank, cluster.size) == (index, 4)
    assert (cluster.local_rank, cluster.local_size) == (local_rank, 2)
    assert cluster.is_chief is (index == 0)
    assert cluster.address == WORKERS[index]
    assert cluster.addresses == WORKERS
    assert cluster.is_distributed


@pytest.mark.parametrize(
    ("task", "rank", "local_rank"),
    [
        (Task("chief", 0), 0, 0),  # c:1, alone on c
        (Task("worker", 0), 1, 0),
        (Task("worker", 3), 4, 1),
    ],
)
def test_the_chief_is_ranked_before_the_workers(task, rank, local_rank):
    cluster = Cluster(chief="c:1", workers=WORKERS, task=task)

    assert (cluster.rank, cluster.size) == (rank, 5)
    assert cluster.local_rank == local_rank
    assert cluster.is_chief is (rank == 0)
    assert cluster.addresses == ("c:1", *WORKERS)
    assert cluster.address == cluster.addresses[rank]


@pytest.mark.parametrize("chief", [None, "c:1"])
def test_rank_and_task_are_inverse(chief):
    task = Task("worker", 0)
    cluster = Cluster(chief=chief, workers=WORKERS, ps=("p:1",), task=task)

    for rank in range(cluster.size):
        seen_there = dataclasses.replace(cluster, task=cluster.task_of(rank))
        assert seen_there.rank == rank
        assert seen_there.address == cluster.addresses[rank]


def test_hosts_are_the_same_in_every_spelling():
    workers = ("Node1:1", "node1:2", "[::1]:1")
    assert Cluster(workers=workers[:2]).local_size == 2
    local = ("[::1]:1", "[0:0:0:0:0:0:0:1]:2")
    assert Cluster(workers=local, task=Task("worker", 1)).local_rank == 1


def test_only_training_processes_count_on_a_host():
    cluster = Cluster(workers=("a:1",), ps=("a:2", "a:3"), evaluators=("a:4",))

    assert (cluster.size, cluster.local_size) == (1, 1)
    assert cluster.is_distributed


def test_an_evaluator_does_not_make_one_worker_distributed():
    assert not Cluster(workers=("a:1",), evaluators=("a:2",)).is_distributed


@pytest.mark.parametrize("task", [Task("ps", 0), Task("evaluator", 1)])
@pytest.mark.parametrize("name", ["rank", "local_rank", "local_size"])
def test_who_does_not_train_has_no_rank(task, name):
    evaluators = ("e:1", "e:2")
    cluster = Cluster(workers=WORKERS, ps=("p:1",), evaluators=evaluators, task=task)

    assert not cluster.is_chief
    assert cluster.size == 4
    message = (
        f"Only the chief and the workers have a rank .* Received: task={task}. Ask"
    )
    with pytest.raises(ValueError, match=message):
        getattr(cluster, name)


def test_everyone_listed_has_an_address():
    task = Task("evaluator", 1)
    cluster = Cluster(workers=WORKERS, evaluators=("e:1", "e:2"), task=task)
    assert cluster.address == "e:2"
    assert dataclasses.replace(cluster, task=Task("worker", 3)).address == "b:2"


@pytest.mark.parametrize(
    "cluster",
    [Cluster(), Cluster(workers=WORKERS, task=Task("evaluator", 2))],
    ids=["alone", "unlisted evaluator"],
)
def test_no_address_is_an_error(cluster):
    with pytest.raises(ValueError, match="no address in its cluster. Received: .* Ask"):
        _ = cluster.address


@pytest.mark.parametrize("rank", [-1, 4])
def test_task_of_refuses_a_rank_that_nobody_has(rank):
    message = f"rank must be from 0 to 3. Received: rank={rank}. Count the chief"
    with pytest.raises(ValueError, match=message):
        Cluster(workers=WORKERS).task_of(rank)


@pytest.mark.parametrize("job_type", ["master", "workers", "Chief", "", None, ["ps"]])
def test_an_unknown_job_type_is_refused(job_type):
    message = "task.type must be one of chief, worker, ps, evaluator. Received: type="
    with pytest.raises(ValueError, match=message):
        Task(job_type, 0)


@pytest.mark.parametrize("index", ["0", True, 0.0, None])
def test_an_index_is_an_integer(index):
    message = (
        f"task.index must be an integer. Received: index={index!r}. Write a number"
    )
    with pytest.raises(TypeError, match=message):
        Task("worker", index)


def test_an_index_is_not_negative():
    message = "task.index must not be negative. Received: index=-1. Count from 0"
    with pytest.raises(ValueError, match=message):
        Task("worker", -1)


@pytest.mark.parametrize("name", ["workers", "ps", "evaluators"])
@pytest.mark.parametrize("addresses", ["a:1", ["a:1"], [], None])
def test_addresses_are_a_tuple(name, addresses):
    message = (
        f'{name} must be a tuple of "host:port" strings. Received: {name}=.* Write'
    )
    with pytest.raises(TypeError, match=message):
        Cluster(chief="c:1", task=Task("chief", 0), **{name: addresses})


def test_a_task_is_a_task():
    message = "task must be a Task. Received: task=.'worker', 0.. Write it as"
    with pytest.raises(TypeError, match=message):
        Cluster(workers=WORKERS, task=("worker", 0))


def test_a_cluster_checks_its_addresses_and_its_task():
    with pytest.raises(ValueError, match=r"cluster\.chief\[0\] has no port"):
        Cluster(chief="c", task=Task("chief", 0))
    with pytest.raises(ValueError, match=r"task\.index must be from 0 to 3"):
        Cluster(workers=WORKERS, task=Task("worker", 4))


def test_clusters_are_plain_values():
    cluster = Cluster(workers=WORKERS)
    assert cluster == Cluster(workers=WORKERS, task=Task("worker", 0))
    assert len({cluster, Cluster(workers=WORKERS), Cluster()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.workers = ()


def test_which_run_it_is_makes_no_other_cluster():
    cluster = Cluster(workers=WORKERS)
    again = Cluster(workers=WORKERS, run_id="5f2c")

    assert (cluster.run_id, again.run_id) == ("", "5f2c")
    assert cluster == again
    assert hash(cluster) == hash(again)
    assert dataclasses.replace(again, task=Task("worker", 1)).run_id == "5f2c"
