import pytest

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers import OpenMPIResolver

ENV = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_the_place_is_read():
    assert OpenMPIResolver().recognises(ENV)
    assert OpenMPIResolver().resolve(ENV) == Place(3, 4, 1, 2, "mpirun")


@pytest.mark.parametrize(
    "env", [{}, {"OMPI_COMM_WORLD_RANK": ""}, {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}]
)
def test_what_it_has_not_set_is_not_recognised(env):
    assert not OpenMPIResolver().recognises(env)


@pytest.mark.parametrize("name", ENV)
def test_a_missing_variable_is_named(name):
    env = {other: value for other, value in ENV.items() if other != name}
    assert OpenMPIResolver().recognises(env)
    message = f"^{name} must be a whole number, as `mpirun` sets it. Received: no "
    with pytest.raises(ValueError, match=message):
        OpenMPIResolver().resolve(env)
