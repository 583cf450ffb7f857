import pytest

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.torchrun import TorchrunResolver

# `torchrun --nnodes 2 --nproc-per-node 2 ...`, the second process on the second host.
ENV = {
    "LOCAL_RANK": "1",
    "RANK": "3",
    "GROUP_RANK": "1",
    "ROLE_RANK": "3",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "OMP_NUM_THREADS": "1",
}

# What is wrong: what is changed, how the error begins, what it received, its advice.
MALFORMED = {
    "no rank": (
        {"RANK": None},
        "RANK must be a whole number, as `torchrun` sets it.",
        "no RANK",
        "Start the program with `torchrun`",
    ),
    "no size": (
        {"WORLD_SIZE": None},
        "WORLD_SIZE must be a whole number, as `torchrun` sets it.",
        "no WORLD_SIZE",
        "do not change its variables",
    ),
    "no local rank": (
        {"LOCAL_RANK": None},
        "LOCAL_RANK must be a whole number, as `torchrun` sets it.",
        "no LOCAL_RANK",
        "Start the program with `torchrun`",
    ),
    "no local size": (
        {"LOCAL_WORLD_SIZE": None},
        "LOCAL_WORLD_SIZE must be a whole number, as `torchrun` sets it.",
        "no LOCAL_WORLD_SIZE",
        "Start the program with `torchrun`",
    ),
    "an empty rank": (
        {"RANK": ""},
        "RANK must be a whole number",
        "RANK=''",
        "Start the program with `torchrun`",
    ),
    "a negative rank": (
        {"RANK": "-1"},
        "RANK must be a whole number",
        "RANK='-1'",
        "do not change its variables",
    ),
    "a size in words": (
        {"WORLD_SIZE": "four"},
        "WORLD_SIZE must be a whole number",
        "WORLD_SIZE='four'",
        "do not change its variables",
    ),
    "a fraction": (
        {"LOCAL_RANK": "0.5"},
        "LOCAL_RANK must be a whole number",
        "LOCAL_RANK='0.5'",
        "do not change its variables",
    ),
    "a rank beyond the size": (
        {"RANK": "4"},
        "rank must be from 0 to size - 1.",
        "rank=4, size=4, local_rank=1, local_size=2 from torchrun",
        "Start all processes with one launcher",
    ),
    "a local rank beyond the local size": (
        {"LOCAL_RANK": "2"},
        "local_rank must be from 0 to local_size - 1.",
        "rank=3, size=4, local_rank=2, local_size=2 from torchrun",
        "leave its variables alone",
    ),
    "more here than everywhere": (
        {"LOCAL_WORLD_SIZE": "5"},
        "local_size must not be greater than size",
        "rank=3, size=4, local_rank=1, local_size=5 from torchrun",
        "Start all processes with one launcher",
    ),
    "nobody": (
        {"WORLD_SIZE": "0"},
        "rank must be from 0 to size - 1.",
        "rank=3, size=0",
        "Start all processes with one launcher",
    ),
}


def changed(changes):
    env = ENV | changes
    return {name: value for name, value in env.items() if value is not None}


def test_the_place_is_read():
    assert TorchrunResolver().recognises(ENV)
    assert TorchrunResolver().resolve(ENV) == Place(3, 4, 1, 2, "torchrun")


@pytest.mark.parametrize(
    "env", [{}, {"RANK": "1", "WORLD_SIZE": "2"}, ENV | {"TORCHELASTIC_RUN_ID": ""}]
)
def test_what_it_has_not_set_is_not_recognised(env):
    assert not TorchrunResolver().recognises(env)


def test_a_virtual_local_rank_is_the_same_for_all():
    env = ENV | {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}
    assert TorchrunResolver().resolve(env) == Place(3, 4, 0, 2, "torchrun")


@pytest.mark.parametrize("mistake", MALFORMED)
def test_a_malformed_variable_is_refused(mistake):
    changes, wrong, received, advice = MALFORMED[mistake]
    env = changed(changes)
    assert TorchrunResolver().recognises(env)

    with pytest.raises(ValueError, match=r" Received: ") as error:
        TorchrunResolver().resolve(env)

    what, _, rest = str(error.value).partition(" Received: ")
    assert what.startswith(wrong)
    assert rest.startswith(received)
    assert advice in rest
