"""Commands, environments and cores of processes, computed by hand."""

import time

import pytest

from tfdist.cluster import detect
from tfdist.cluster.detect import detect_membership
from tfdist.launching.job import Job
from tfdist.launching.machine import Machine
from tfdist.launching.plan import plan


def specs_of(*, size=2, cores=(0, 1, 2, 3), environ=(), slots=None, **options):
    gpus, visible = options.pop("gpus", ()), options.pop("visible", None)
    quota = options.pop("quota", None)
    job = Job(("/bin/prog", "arg"), **{"size": size, **options})
    ports = tuple(range(2000, 2000 + job.process_count))
    return plan(
        job,
        [Machine("127.0.0.1", ports, tuple(cores), gpus, visible, quota)],
        run_id="5f",
        environ=dict(environ),
        slots=slots,
        rendezvous_port=2000 + job.process_count,
    )


def role_specs_of(*, workers=2, ps=1, cores=(0, 1), **options):
    return specs_of(size=None, workers=workers, ps=ps, cores=cores, **options)


def slot_specs_of(*slots, **options):
    return specs_of(size=4, slots=slots, **options)


THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def threads_of(spec):
    return [spec.env.get(name) for name in THREADS]


def test_a_thousand_processes_are_planned_in_seconds():
    begun = time.process_time()
    specs = specs_of(size=1000)

    assert time.process_time() - begun < 5
    assert specs[-1].env["TFDIST_LOCAL_RANK"] == "999"


def test_each_rank_of_a_horovod_job_has_its_identity_besides():
    specs = specs_of(collective="horovod")

    assert [spec.env["HOROVOD_RANK"] for spec in specs] == ["0", "1"]
    assert {spec.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] for spec in specs} == {"2002"}
    addresses = ("127.0.0.1:2000", "127.0.0.1:2001")
    assert {detect(spec.env).addresses for spec in specs} == {addresses}
    member = detect_membership(specs[1].env)
    assert (member.rank, member.size, member.launcher) == (1, 2, "tfdist run")
    assert (member.local_rank, member.local_size) == (1, 2)
    assert specs[0].env["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(
    ("collective", "unset"),
    [
        ("tensorflow", ("HOROVOD_CONTROLLER", "HOROVOD_ELASTIC", "HOROVOD_RANK")),
        ("horovod", ("HOROVOD_ELASTIC",)),
    ],
)
def test_the_identity_in_another_job_is_not_inherited(collective, unset):
    outside = {
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_RANK": "7",
    }
    specs = specs_of(collective=collective, environ=outside)

    assert [spec.unset for spec in specs] == [unset] * 2


def test_what_the_user_has_set_wins_over_the_share():
    spec = specs_of(environ={"OMP_NUM_THREADS": "7", "PYTHONUNBUFFERED": ""})[0]

    assert threads_of(spec) == ["2", "2", None]
    assert "PYTHONUNBUFFERED" not in spec.env
    # Sets of strings have one order on all ranks.
    assert spec.env["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    ("environ", "options", "level"),
    [
        ({}, {}, 2),
        ({}, {"verbose": True}, 0),
        ({"TF_CPP_MIN_LOG_LEVEL": ""}, {}, 2),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, {}, 0),
        ({"TF_CPP_MIN_LOG_LEVEL": "10"}, {}, 10),
        ({"TF_CPP_MIN_LOG_LEVEL": "all"}, {}, 0),
        ({}, {"env": {"TF_CPP_MIN_LOG_LEVEL": "3"}}, 3),
    ],
)
def test_the_level_is_the_users_or_that_of_errors(environ, options, level):
    assert specs_of(environ=environ, **options)[0].log_level == level


def test_env_wins_over_everything_but_identity():
    spec = specs_of(threads_per_process=3, env={"OMP_NUM_THREADS": "5", "A": "b"})[0]

    assert threads_of(spec) == ["3", "3", "5"]
    assert spec.env["A"] == "b"


@pytest.mark.parametrize(
    ("size", "bind_to", "pins"),
    [
        (2, None, [(0, 1), (2, 3)]),
        (2, "core", [(0, 1), (2, 3)]),
        (2, "none", [(), ()]),
        (1, None, [()]),
        (1, "core", [(0, 1, 2, 3)]),
        (5, None, [()] * 5),
        (4, None, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_pins(size, bind_to, pins):
    assert [s.cores for s in specs_of(size=size, bind_to=bind_to)] == pins


@pytest.mark.parametrize(
    ("options", "pins", "threads"),
    [
        ({"quota": 4}, (0, 1), "2"),
        ({"quota": 2}, (), "1"),
        ({"quota": 1}, (), "1"),
        ({"quota": 2, "bind_to": "none"}, (), "1"),
        ({"quota": 2, "bind_to": "core"}, (0, 1), "2"),
    ],
)
def test_a_quota_limits_threads_and_pins_none(options, pins, threads):
    spec = specs_of(**options)[0]

    assert (spec.cores, threads_of(spec)) == (pins, [threads] * 3)


def test_a_quota_is_shared_by_workers():
    specs = role_specs_of(workers=2, cores=range(8), quota=5)

    assert [threads_of(spec)[0] for spec in specs] == ["2"] * 4


def test_no_pins_without_a_core_for_each():
    message = "Received: 5 processes and 4 cores. Start fewer"
    with pytest.raises(ValueError, match=message):
        specs_of(size=5, bind_to="core")


# Two sockets, of which the second one is near GPU 0.
GPUS = ((2, 3), (0, 1))
FAR, NEAR = [(0, 1), (2, 3)], [(2, 3), (0, 1)]


@pytest.mark.parametrize(
    ("options", "pins"),
    [
        ({}, NEAR),
        ({"bind_to": "core"}, NEAR),
        ({"bind_to": "none"}, [(), ()]),
        ({"collective": "horovod"}, NEAR),
        ({"environ": {"CUDA_VISIBLE_DEVICES": "1,0"}}, FAR),
        ({"environ": {"CUDA_VISIBLE_DEVICES": "1"}}, FAR),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1,0"}}, FAR),
        # The variable of another host wins over the launcher's, the job's over both.
        ({"visible": "1,0"}, FAR),
        ({"visible": "1,0", "environ": {"CUDA_VISIBLE_DEVICES": "0,1"}}, FAR),
        (
            {
                "environ": {"CUDA_VISIBLE_DEVICES": "1,0"},
                "env": {"CUDA_VISIBLE_DEVICES": "0,1"},
            },
            NEAR,
        ),
    ],
)
def test_ranks_are_pinned_near_their_gpus(options, pins):
    assert [spec.cores for spec in specs_of(gpus=GPUS, **options)] == pins


@pytest.mark.parametrize(
    ("bind_to", "threads"), [("core", ["3", "1"]), ("none", ["2", "2"])]
)
def test_threads_are_as_many_as_cores_near_the_gpu_if_pinned(bind_to, threads):
    specs = specs_of(gpus=((0, 1, 2), (3,)), bind_to=bind_to)

    assert [spec.env["OMP_NUM_THREADS"] for spec in specs] == threads


def test_a_rank_numbered_anew_is_pinned_near_the_gpu_of_its_number():
    gpus = ((6, 7), (4, 5), (2, 3), (0, 1))
    specs = slot_specs_of(0, 2, 3, cores=range(8), gpus=gpus)

    assert [spec.cores for spec in specs] == [(6, 7), (4, 5), (2, 3)]


def test_tasks_beside_parameter_servers_are_not_pinned_near_gpus():
    pins = [(0,), (1,), (2,), (3,)]
    gpus = ((3,), (2,), (1,), (0,))

    assert [s.cores for s in role_specs_of(cores=range(4), gpus=gpus)] == pins


def test_each_task_knows_who_it_is():
    envs = [spec.env for spec in role_specs_of()]
    clusters = [detect(env) for env in envs]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "RUN_ID")
    numbers = [[env.get(f"TFDIST_{name}") for name in names] for env in envs]

    tasks = ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert [str(cluster.task) for cluster in clusters] == tasks
    addresses = [f"127.0.0.1:{port}" for port in range(2000, 2004)]
    assert [cluster.address for cluster in clusters] == addresses
    assert numbers[2:] == [["2", "3", "2", "3", "5f"], [None, "3", None, None, "5f"]]


def test_the_identity_of_another_kind_is_not_inherited():
    outside = {"TFDIST_RANK": "1", "TFDIST_LOCAL_RANK": "1", "TFDIST_TASK": "ps 0"}

    ranks = ("TFDIST_LOCAL_RANK", "TFDIST_RANK")
    assert role_specs_of(environ=outside)[3].unset == ranks
    assert specs_of(environ=outside)[1].unset == ("TFDIST_TASK",)


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ({"environ": {"CUDA_VISIBLE_DEVICES": "0,1"}}, ""),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "1"),
    ],
)
def test_an_evaluator_leaves_the_gpus_to_the_workers(options, visible):
    *others, evaluator = role_specs_of(evaluator=True, **options)

    assert evaluator.env["CUDA_VISIBLE_DEVICES"] == visible
    if "env" not in options:
        assert not any("CUDA_VISIBLE_DEVICES" in spec.env for spec in others)


@pytest.mark.parametrize(
    ("cores", "bind_to", "pins", "threads"),
    [
        # Two workers share the cores, and the others have as many threads.
        (3, None, [()] * 4, ["1"] * 4),
        (2, "none", [()] * 4, ["1"] * 4),
        (8, "none", [()] * 4, ["4"] * 4),
        (1, None, [()] * 4, ["1"] * 4),
        # Nobody has more threads than the cores that it is pinned to.
        (4, None, [(0,), (1,), (2,), (3,)], ["1"] * 4),
        (5, "core", [(0, 1), (2,), (3,), (4,)], ["2", "1", "1", "1"]),
    ],
)
def test_cores_and_threads_of_each_task(cores, bind_to, pins, threads):
    specs = role_specs_of(cores=range(cores), bind_to=bind_to)

    assert [spec.cores for spec in specs] == pins
    assert [spec.env["OMP_NUM_THREADS"] for spec in specs] == threads


def test_slots_keep_their_cores_when_ranks_are_numbered_anew():
    specs = slot_specs_of(0, 2, 3, cores=range(8))

    assert [spec.cores for spec in specs] == [(0, 1), (4, 5), (6, 7)]
    assert [spec.env["TFDIST_SLOT"] for spec in specs] == ["0", "2", "3"]
    assert [spec.env["TFDIST_RANK"] for spec in specs] == ["0", "1", "2"]
    clusters = [detect(spec.env) for spec in specs]
    places = [(cluster.rank, cluster.size) for cluster in clusters]
    assert places == [(0, 3), (1, 3), (2, 3)]
    assert [spec.env["TFDIST_LOCAL_SIZE"] for spec in specs] == ["3"] * 3
