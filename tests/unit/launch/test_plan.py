"""Who gets what, computed by hand."""

import json
import shlex
import subprocess

import pytest

from tfdist.cluster import detect
from tfdist.cluster.detect import detect_membership
from tfdist.launch.job import Job
from tfdist.launch.plan import plan
from tfdist.launch.spec import ProcessSpec

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def numbers_of(env):
    """Return what our own launcher tells a process."""
    member = detect_membership(env)
    local = (member.local_rank, member.local_size)
    return (member.rank, member.size, *local, member.launcher)


def specs_of(*, size=2, cores=(0, 1, 2, 3), environ=(), **options):
    job = Job(("/bin/prog", "arg"), size=size, **options)
    return plan(
        job,
        ports=range(2000, 2000 + size + (job.collective == "horovod")),
        cores=cores,
        run_id="5f",
        environ=dict(environ),
    )


def role_specs_of(*, workers=2, ps=1, cores=(0, 1), environ=(), **options):
    return plan(
        Job(("/bin/prog",), workers=workers, ps=ps, **options),
        ports=range(2000, 2001 + workers + ps),
        cores=cores,
        run_id="5f",
        environ=dict(environ),
    )


def threads_of(spec):
    return [spec.env.get(name) for name in THREADS]


def test_each_rank_runs_the_command():
    assert [(s.rank, s.argv) for s in specs_of()] == [
        (0, ("/bin/prog", "arg")),
        (1, ("/bin/prog", "arg")),
    ]


def test_each_rank_knows_who_it_is():
    env = specs_of(size=3)[2].env

    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": ["127.0.0.1:2000", "127.0.0.1:2001", "127.0.0.1:2002"]},
        "task": {"type": "worker", "index": 2},
    }
    assert {name: env[name] for name in env if name.startswith("TFDIST_")} == {
        "TFDIST_RANK": "2",
        "TFDIST_SIZE": "3",
        "TFDIST_LOCAL_RANK": "2",
        "TFDIST_LOCAL_SIZE": "3",
        "TFDIST_RUN_ID": "5f",
        "TFDIST_SLOT": "2",
    }


def test_each_rank_of_a_horovod_job_has_its_identity_besides():
    specs = specs_of(collective="horovod")

    assert [spec.env["HOROVOD_RANK"] for spec in specs] == ["0", "1"]
    assert {spec.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] for spec in specs} == {"2002"}
    assert [detect(spec.env).addresses for spec in specs] == [
        ("127.0.0.1:2000", "127.0.0.1:2001")
    ] * 2
    assert numbers_of(specs[1].env) == (1, 2, 1, 2, "tfdist run")
    assert specs[0].env["NCCL_SOCKET_IFNAME"] == "lo"


def test_users_may_choose_the_interface_of_nccl():
    inherited = specs_of(collective="horovod", environ={"NCCL_SOCKET_IFNAME": "eth0"})
    given = specs_of(collective="horovod", env={"NCCL_SOCKET_IFNAME": "eth0"})

    assert "NCCL_SOCKET_IFNAME" not in inherited[0].env
    assert given[0].env["NCCL_SOCKET_IFNAME"] == "eth0"


def test_other_jobs_have_nothing_of_horovod():
    assert not [name for name in specs_of()[0].env if "HOROVOD" in name]


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


@pytest.mark.parametrize("size", [1, 3])
def test_our_own_resolver_understands_it(size):
    clusters = [detect(spec.env) for spec in specs_of(size=size)]

    assert [cluster.rank for cluster in clusters] == [*range(size)]
    assert {cluster.size for cluster in clusters} == {size}


def test_each_rank_gets_its_share_of_threads():
    assert [threads_of(s) for s in specs_of()] == [["2"] * 3, ["2"] * 3]


def test_more_processes_than_cores_get_one_thread_each():
    specs = specs_of(size=3, cores=(0, 1))

    assert [threads_of(s) for s in specs] == [["1"] * 3] * 3


def test_what_the_user_has_set_wins_over_the_share():
    spec = specs_of(environ={"OMP_NUM_THREADS": "7", "PYTHONUNBUFFERED": ""})[0]

    assert threads_of(spec) == ["2", "2", None]
    assert "PYTHONUNBUFFERED" not in spec.env


def test_the_option_wins_over_the_environment():
    spec = specs_of(threads_per_process=3, environ={"OMP_NUM_THREADS": "7"})[0]

    assert threads_of(spec) == ["3", "3", "3"]


def test_env_wins_over_everything_but_identity():
    spec = specs_of(threads_per_process=3, env={"OMP_NUM_THREADS": "5", "A": "b"})[0]

    assert threads_of(spec) == ["3", "3", "5"]
    assert spec.env["A"] == "b"


def test_python_is_unbuffered():
    assert specs_of()[0].env["PYTHONUNBUFFERED"] == "1"


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


def test_no_pins_without_a_core_for_each():
    with pytest.raises(
        ValueError, match="Received: 5 processes and 4 cores. Start fewe"
    ):
        specs_of(size=5, bind_to="core")


def test_threads_follow_the_share_without_pins_too():
    assert threads_of(specs_of(bind_to="none")[0]) == ["2"] * 3


def test_each_task_is_a_process():
    specs = role_specs_of()

    assert [spec.rank for spec in specs] == [0, 1, 2, 3]
    assert [spec.name for spec in specs] == ["chief", "worker 0", "worker 1", "ps 0"]
    assert [spec.tag for spec in specs] == ["chief", "worker 0", "worker 1", "ps 0"]
    assert [spec.log_name for spec in specs] == [
        "chief.log",
        "worker.0.log",
        "worker.1.log",
        "ps.0.log",
    ]


def test_a_rank_has_its_number_for_a_tag():
    spec = specs_of()[1]

    assert (spec.name, spec.tag, spec.log_name) == ("rank 1", "1", "rank.1.log")


def test_each_task_knows_who_it_is():
    chief, _, worker, ps = (spec.env for spec in role_specs_of())

    assert json.loads(worker["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["127.0.0.1:2000"],
            "worker": ["127.0.0.1:2001", "127.0.0.1:2002"],
            "ps": ["127.0.0.1:2003"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert {name: worker[name] for name in worker if name.startswith("TFDIST_")} == {
        "TFDIST_TASK": "worker 1",
        "TFDIST_RANK": "2",
        "TFDIST_SIZE": "3",
        "TFDIST_LOCAL_RANK": "2",
        "TFDIST_LOCAL_SIZE": "3",
        "TFDIST_RUN_ID": "5f",
    }
    assert {name: ps[name] for name in ps if name.startswith("TFDIST_")} == {
        "TFDIST_TASK": "ps 0",
        "TFDIST_SIZE": "3",
        "TFDIST_RUN_ID": "5f",
    }
    assert chief["TFDIST_TASK"] == "chief 0"


def test_our_own_resolver_understands_each_task():
    specs = role_specs_of(workers=2, ps=2)
    clusters = [detect(spec.env) for spec in specs]

    assert [cluster.task for cluster in clusters] == [spec.task for spec in specs]
    assert [cluster.rank for cluster in clusters[:3]] == [0, 1, 2]
    assert {cluster.run_id for cluster in clusters} == {"5f"}
    assert numbers_of(specs[0].env) == (0, 3, 0, 3, "tfdist run")


def test_the_identity_of_another_kind_is_not_inherited():
    outside = {"TFDIST_RANK": "1", "TFDIST_LOCAL_RANK": "1", "TFDIST_TASK": "ps 0"}

    assert role_specs_of(environ=outside)[3].unset == (
        "TFDIST_LOCAL_RANK",
        "TFDIST_RANK",
    )
    assert specs_of(environ=outside)[1].unset == ("TFDIST_TASK",)


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


def test_no_pins_without_a_core_for_each_task():
    with pytest.raises(ValueError, match="Received: 4 processes and 3 cores"):
        role_specs_of(cores=range(3), bind_to="core")


def test_the_shell_line_keeps_every_character():
    spec = ProcessSpec(0, ("/bin/echo", "a  'b'", "$HOME"), {"X": 'a "b"\n'})

    assert shlex.split(spec.shell_line()) == [
        "env",
        'X=a "b"\n',
        "/bin/echo",
        "a  'b'",
        "$HOME",
    ]


def test_the_shell_line_unsets():
    spec = ProcessSpec(0, ("/bin/true",), {"X": "1"}, unset=("A", "B"))

    assert spec.shell_line() == "env -u A -u B X=1 /bin/true"


@pytest.mark.requires("taskset")
def test_the_shell_line_pins():
    line = ProcessSpec(0, ("/bin/sh", "-c", "echo $X"), {"X": "1"}, (0,)).shell_line()

    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)

    assert "taskset -c 0 " in line
    assert done.stdout == b"1\n"


def slot_specs_of(*slots, cores=(0, 1, 2, 3), **options):
    return plan(
        Job(("/bin/prog",), size=4, **options),
        ports=range(2000, 2005),
        cores=cores,
        run_id="5f",
        environ={},
        slots=slots,
    )


def test_slots_keep_their_cores_when_ranks_are_numbered_anew():
    specs = slot_specs_of(0, 2, 3, cores=range(8))

    assert [spec.cores for spec in specs] == [(0, 1), (4, 5), (6, 7)]
    assert [spec.env["TFDIST_SLOT"] for spec in specs] == ["0", "2", "3"]
    assert [spec.env["TFDIST_RANK"] for spec in specs] == ["0", "1", "2"]
    clusters = [detect(spec.env) for spec in specs]
    assert [(cluster.rank, cluster.size) for cluster in clusters] == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]
    assert [spec.env["TFDIST_LOCAL_SIZE"] for spec in specs] == ["3"] * 3


def test_slots_keep_their_threads():
    specs = slot_specs_of(1, 3, cores=range(8), bind_to="none")

    assert [threads_of(spec) for spec in specs] == [["2"] * 3] * 2


def test_processes_without_pins_get_none_when_there_are_fewer():
    """What is pinned is decided by the whole job, so that a restart changes nothing."""
    specs = slot_specs_of(0, 1, cores=(0, 1))

    assert [spec.cores for spec in specs] == [(), ()]


def test_slots_of_a_horovod_job():
    specs = slot_specs_of(0, 3, collective="horovod")

    assert [spec.env["HOROVOD_SIZE"] for spec in specs] == ["2", "2"]
    assert [spec.env["HOROVOD_RANK"] for spec in specs] == ["0", "1"]
    assert specs[1].env["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "2004"


def test_tasks_have_no_slots():
    assert all("TFDIST_SLOT" not in spec.env for spec in role_specs_of())
