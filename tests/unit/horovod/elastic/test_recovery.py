"""Which errors mean that a rank was lost, and what follows from one."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

pytestmark = pytest.mark.requires("horovodrun")


@pytest.fixture
def state(hvd):
    return hvd.elastic.TensorFlowState([tf.Variable(0.0)], epoch=0)


@pytest.fixture
def job(monkeypatch):
    """Horovod's part in a recovery, which one process alone under MPI cannot play."""
    job = SimpleNamespace(calls=[], is_mpi=False)
    module = "horovod.tensorflow"
    monkeypatch.setattr(f"{module}.mpi_enabled", lambda: job.is_mpi)
    monkeypatch.setattr(f"{module}.shutdown", lambda: job.calls.append("shutdown"))
    monkeypatch.setattr(f"{module}.init", lambda: job.calls.append("init"))
    return job


def lost(message):
    return tf.errors.UnknownError(None, None, message)


@pytest.mark.parametrize(
    "message",
    [
        "Horovod has been shut down.",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error",
        "ncclAllReduce failed: unhandled system error",
    ],
)
def test_a_lost_rank_takes_the_state_back_and_calls_again(hvd, state, job, message):
    seen = []
    state.register_reset_callbacks([lambda: job.calls.append("reset")])

    @hvd.elastic.run
    def train(state, word):
        seen.append((state.epoch, float(state.variables[0].numpy())))
        state.epoch = 1
        state.variables[0].assign(1.0)
        if len(seen) == 1:
            raise lost(message)
        return word

    assert train(state, word="trained") == "trained"
    assert seen == [(0, 0.0), (0, 0.0)]
    assert job.calls == ["shutdown", "init", "reset"]


def test_under_mpi_it_says_why_it_cannot_go_on(hvd, state, job):
    job.is_mpi = True

    @hvd.elastic.run
    def train(state):
        raise lost("Horovod has been shut down.")

    with pytest.raises(
        RuntimeError,
        match=r"^An elastic job needs Gloo: MPI cannot go on without a rank\. "
        r"Received: a job that was started under MPI\. Start it with horovodrun --gloo",
    ):
        train(state)

    assert job.calls == []


@pytest.mark.parametrize(
    "error",
    [
        # Horovod's own decorator returned None for the first.
        lost("The disk is full."),
        tf.errors.InvalidArgumentError(None, None, "Shapes differ."),
        RuntimeError("Horovod"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_raised(hvd, state, error):
    @hvd.elastic.run
    def train(state):
        raise error

    with pytest.raises(type(error)) as raised:
        train(state)

    assert raised.value is error
