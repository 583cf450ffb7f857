import pytest

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers import MPICHResolver

ENV = {
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}


def test_the_place_is_read():
    assert MPICHResolver().recognises(ENV)
    assert MPICHResolver().resolve(ENV) == Place(3, 4, 1, 2, "mpirun")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"PMI_RANK": ""},
        {"MPI_LOCALRANKID": "0"},
        # Slurm's.
        {"PMI_RANK": "1", "PMI_SIZE": "4"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_what_it_has_not_set_is_not_recognised(env):
    assert not MPICHResolver().recognises(env)


@pytest.mark.parametrize("name", ENV)
def test_a_missing_variable_is_named(name):
    env = {other: value for other, value in ENV.items() if other != name}
    assert MPICHResolver().recognises(env)
    message = f"^{name} must be a whole number, as `mpirun` sets it. Received: no "
    with pytest.raises(ValueError, match=message):
        MPICHResolver().resolve(env)
