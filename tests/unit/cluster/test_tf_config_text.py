import pytest

from tfdist.cluster.tf_config_text import check_keys, parse


def test_an_object_is_returned_as_it_is():
    text = ' {"cluster": {"worker": ["a:1"]},\n "task": {"index": 0}} '
    assert parse(text) == {"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_text_is_refused(text):
    with pytest.raises(ValueError, match="^TF_CONFIG is empty. Received: .* Unset it"):
        parse(text)


def test_a_syntax_error_is_shown_in_its_line():
    text = '{"task": {"type": "worker",\n\t"index": 0,}}'

    with pytest.raises(
        ValueError, match="not valid JSON at line 2, column 1[23]"
    ) as error:
        parse(text)

    _, excerpt, caret, advice = str(error.value).split("\n")
    assert excerpt == '   "index": 0,}}'
    assert excerpt[caret.index("^")] in ",}"
    assert advice.startswith("Write it with json.dumps()")


def test_an_excerpt_of_a_long_line_shows_the_mistake():
    workers = ", ".join(f'"node{number}:2222"' for number in range(1000))
    text = (
        f'{{"cluster": {{"worker": [{workers}]}}, "task" {{}}, "job": "{"x" * 999}"}}'
    )

    with pytest.raises(ValueError, match="Expecting ':' delimiter") as error:
        parse(text)

    _, excerpt, caret, _ = str(error.value).split("\n")
    assert len(excerpt) <= 80
    assert '"task" {}' in excerpt
    assert excerpt[caret.index("^")] == "{"


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ("[]", r"\[\]"),
        ("null", "null"),
        ("0", "0"),
        ('"{}"', '"{}"'),
        ("true", "true"),
    ],
)
def test_only_an_object_will_do(text, received):
    message = f"^TF_CONFIG must be a JSON object. Received: {received}. Write it as"
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"worker": ["a:1"], "ps": [], "worker": ["b:1"]}',
        '{"cluster": {"worker": ["a:1"], "ps": [], "worker": ["b:1"]}}',
    ],
)
def test_no_key_is_lost_to_a_second_one(text):
    message = (
        '^TF_CONFIG has the key "worker" more than once in one object. '
        "Received: worker, ps, worker. Put all"
    )
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_known_keys_are_accepted():
    assert check_keys({"type": 0, "index": 0}, ("type", "index"), "unknown") is None


@pytest.mark.parametrize("key", ["clusters", "Cluster", "CLUSTER", "clutser"])
def test_an_unknown_key_is_answered_with_the_nearest(key):
    message = f'^no key "{key}". Received: task, {key}. Did you mean "cluster".'
    with pytest.raises(ValueError, match=message):
        check_keys({"task": 0, key: 0}, ("cluster", "task"), "no key")


def test_an_unknown_key_like_no_other_is_answered_with_all():
    message = '^no key "x". Received: x. Leave it out, or .* Known are: cluster, task.$'
    with pytest.raises(ValueError, match=message):
        check_keys({"x": 0}, ("cluster", "task"), "no key")
