"""What can be asked for, and what cannot."""

import pytest

from tfdist.launch.job import RESERVED_VARIABLES, Job


def test_everything_but_command_and_size_has_a_default():
    job = Job(("/bin/true",), size=3)

    assert job.collective == "tensorflow"
    assert (job.bind_to, job.threads_per_process, job.env) == (None, None, {})


@pytest.mark.parametrize("size", [0, -1])
def test_size_is_at_least_one(size):
    with pytest.raises(ValueError, match=rf"size \(-np\) must be.*size={size}\. Give"):
        Job(("/bin/true",), size=size)


def test_a_job_with_parameter_servers():
    job = Job(("/bin/true",), workers=3, ps=2)

    assert (job.size, job.workers, job.ps, job.process_count) == (None, 3, 2, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"needs size \(-np\), or both .*Received: none of them\. .*--workers 2 --p",
        ),
        ({"workers": 2}, r"both workers and ps .*Received: workers=2\. For a chief"),
        ({"ps": 1}, r"both workers and ps .*Received: ps=1\. For a chief"),
        (
            {"size": 2, "workers": 2, "ps": 1},
            r"\(-np\) does not go with .*Received: size=2, workers=2, ps=1\. Give -np",
        ),
        ({"size": 2, "ps": 1}, r"does not go with .*Received: size=2, ps=1\. Give -np"),
        (
            {"size": 2, "evaluator": True},
            r"\(--evaluator\) is for a job .*Received: evaluator, size=2\. Give --w",
        ),
        (
            {"workers": 0, "ps": 1},
            r"workers \(--workers\) must be at least 1\. Received: workers=0\. Give",
        ),
        (
            {"workers": 2, "ps": -1},
            r"ps \(--ps\) must be at least 1\. Received: ps=-1\. Give the number of ps",
        ),
        (
            {"workers": 2, "ps": 1, "collective": "horovod"},
            r"joins ranks .*'horovod', workers=2, ps=1\. Give -np instead",
        ),
    ],
)
def test_a_job_has_a_size_or_workers_and_ps(options, message):
    with pytest.raises(ValueError, match=message):
        Job(("/bin/true",), **options)


def test_bind_to_is_one_of_two_words():
    with pytest.raises(ValueError, match=r"'core' or 'none'\. Received: bind_to='c'"):
        Job(("/bin/true",), size=1, bind_to="c")


def test_threads_per_process_is_at_least_one():
    with pytest.raises(ValueError, match=r"at least 1\..*process=0\. Leave"):
        Job(("/bin/true",), size=1, threads_per_process=0)


def test_the_collective_is_one_of_two_words():
    with pytest.raises(ValueError, match=r"'horovod'\. Received: collective='mpi'\. L"):
        Job(("/bin/true",), size=1, collective="mpi")


@pytest.mark.parametrize("name", ["", "A=B"])
def test_env_has_names_that_an_environment_can_hold(name):
    with pytest.raises(ValueError, match=r"Received: the name '.*'\. Write it as"):
        Job(("/bin/true",), size=1, env={name: "1"})


def test_what_tells_a_process_who_it_is_is_reserved():
    names = {"TF_CONFIG", "TFDIST_RANK", "TFDIST_TASK", "HOROVOD_RANK"}
    assert names <= set(RESERVED_VARIABLES)
    assert "HOROVOD_CYCLE_TIME" not in RESERVED_VARIABLES


@pytest.mark.parametrize("name", RESERVED_VARIABLES)
def test_env_does_not_set_what_the_launcher_sets(name):
    with pytest.raises(ValueError, match=rf"Received: {name}=1\. Leave {name} out"):
        Job(("/bin/true",), size=1, env={name: "1"})
