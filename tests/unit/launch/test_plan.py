"""Who gets what, computed by hand."""

import json
import shlex
import subprocess

import pytest

from tfdist.cluster import detect
from tfdist.cluster.detect import detect_place
from tfdist.cluster.place import Place
from tfdist.launch.job import Job
from tfdist.launch.plan import ProcessSpec, plan

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def specs_of(*, size=2, cores=(0, 1, 2, 3), environ=(), **options):
    job = Job(("/bin/prog", "arg"), size=size, **options)
    return plan(
        job,
        ports=range(2000, 2000 + size + (job.collective == "horovod")),
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
    }


def test_each_rank_of_a_horovod_job_has_its_identity_besides():
    specs = specs_of(collective="horovod")

    assert [spec.env["HOROVOD_RANK"] for spec in specs] == ["0", "1"]
    assert {spec.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] for spec in specs} == {"2002"}
    assert [detect(spec.env).addresses for spec in specs] == [
        ("127.0.0.1:2000", "127.0.0.1:2001")
    ] * 2
    assert detect_place(specs[1].env) == Place(1, 2, 1, 2, "tfdist run")
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
