import pytest

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers import HorovodResolver

ENV = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
}


def test_the_place_is_read():
    assert HorovodResolver().recognises(ENV)
    assert HorovodResolver().resolve(ENV) == Place(3, 4, 1, 2, "horovodrun")


@pytest.mark.parametrize("env", [{}, {"HOROVOD_RANK": ""}, {"HOROVOD_LOCAL_RANK": "0"}])
def test_what_it_has_not_set_is_not_recognised(env):
    assert not HorovodResolver().recognises(env)


@pytest.mark.parametrize("name", ENV)
def test_a_missing_variable_is_named(name):
    env = {other: value for other, value in ENV.items() if other != name}
    assert HorovodResolver().recognises(env)
    message = f"^{name} must be a whole number, as `horovodrun` sets it. Received: no "
    with pytest.raises(ValueError, match=message):
        HorovodResolver().resolve(env)
