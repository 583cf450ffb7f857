import pytest

from tfdist.cluster.place import Place
from tfdist.cluster.resolvers.variables import PlaceVariables, number

NAMES = PlaceVariables("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
ENV = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}


def test_the_place_is_read():
    assert NAMES.read(ENV, "launch") == Place(3, 4, 1, 2, "launch")


@pytest.mark.parametrize(
    ("env", "there"),
    [
        ({}, False),
        ({"RANK": "", "SIZE": ""}, False),
        ({"LOCAL_RANK": "0", "LOCAL_SIZE": "1"}, False),
        ({"RANK": "x"}, True),
        ({"SIZE": "2"}, True),
    ],
)
def test_a_rank_or_a_size_shows_the_launcher(env, there):
    assert NAMES.are_in(env) is there


@pytest.mark.parametrize("name", ENV)
@pytest.mark.parametrize("value", ["", "one", "-1", "1.0", " 1", "²"])
def test_a_malformed_number_is_refused(name, value):
    message = (
        f"^{name} must be a whole number, as `launch -n` sets it. "
        f"Received: {name}='{value}'. Start the program with `launch -n`, and do not"
    )
    with pytest.raises(ValueError, match=message):
        NAMES.read({**ENV, name: value}, "launch -n")


def test_a_missing_number_is_refused():
    with pytest.raises(ValueError, match="^RANK must .* Received: no RANK. Start the"):
        number({}, "RANK", "launch")


def test_of_a_long_value_the_beginning_is_told():
    with pytest.raises(ValueError, match=r" Received: RANK='9{72}'\.\.\.\. Start the"):
        number({"RANK": "9" * 5000}, "RANK", "launch")


def test_an_impossible_place_is_refused():
    with pytest.raises(ValueError, match="^rank must be .* local_size=2 from launch."):
        NAMES.read({**ENV, "RANK": "4"}, "launch")
