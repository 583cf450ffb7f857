import pytest

from tfdist.cluster.resolvers.json_variable import excerpt, read_json

# What is wrong: the value, what the error says of it, and how it shows the value.
MALFORMED = {
    "empty": ("", "Expecting value at line 1, column 1", "''"),
    "a bare word": ("algo-1", "Expecting value at line 1, column 1", "'algo-1'"),
    "single quotes": ("['a']", "Expecting value at line 1, column 2", "\"['a']\""),
    "cut off": ('{"a":\n [', "Expecting value at line 2, column 3", "'{\"a\":\\n ['"),
    "a key twice": (
        '{"a": 1, "a": 2}',
        "a key stands more than once in one object",
        '\'{"a": 1, "a": 2}\'',
    ),
    "nested too deep": ("[" * 200_000, "its brackets are nested too deep", "'[[["),
    "a long number": ("1" * 5000, "a number has more than 18 digits", "'111"),
}


@pytest.mark.parametrize("mistake", MALFORMED)
def test_what_is_no_json_is_refused(mistake):
    value, wrong, received = MALFORMED[mistake]

    with pytest.raises(ValueError, match="^NAME is not valid JSON: ") as error:
        read_json({"NAME": value}, "NAME", '["a"]')

    message = str(error.value)
    assert message.startswith(f"NAME is not valid JSON: {wrong}. Received: {received}")
    assert message.endswith("the service sets it, for example NAME='[\"a\"]'.")
    assert len(message) < 300


@pytest.mark.parametrize(
    ("value", "read"), [("[]", []), ('{"a": [1, -2]}', {"a": [1, -2]}), ("null", None)]
)
def test_json_is_read(value, read):
    assert read_json({"NAME": value}, "NAME", "[]") == read


def test_a_long_value_is_cut_off_in_an_error():
    assert excerpt("a" * 72) == repr("a" * 72)
    assert excerpt("a" * 73) == repr("a" * 72) + "..."


def test_an_error_can_be_printed_whatever_the_variable_holds():
    assert excerpt("a\udc80\x1b[2J") == r"'a\udc80\x1b[2J'"
