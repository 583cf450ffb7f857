import pytest

from tfdist.cluster import tf_config_text
from tfdist.cluster.finding import refuse_first
from tfdist.cluster.tf_config_text import as_meant, nearest, unknown_keys


def parse(text):
    """Return the object of a text, or raise the first mistake."""
    config, findings = tf_config_text.parse(text)
    refuse_first(findings, "TF_CONFIG ")
    return config


def check_keys(found, known, complaint):
    """Raise the first unknown key."""
    refuse_first(unknown_keys(found, known, complaint, place="task", effect="refused"))


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


def test_every_mistake_of_a_text_is_told():
    text = '{"cluster": {"ps": [], "ps": []}, "task": 0, "task": 1, "task": 2,}'
    _, findings = tf_config_text.parse(text)

    assert [(finding.place, finding.effect) for finding in findings] == [
        ("TF_CONFIG", "hang"),
        ("line 1, column 67", "not readable"),
    ]


def test_a_job_that_is_there_twice_is_joined():
    text = '{"worker": ["a:1"], "worker": ["b:1"], "rpc": 1, "rpc": 2}'
    config, findings = tf_config_text.parse(text)

    assert config == {"worker": ["a:1", "b:1"], "rpc": 2}
    assert [finding.problem for finding in findings] == [
        'has the key "worker" more than once in one object.',
        'has the key "rpc" more than once in one object.',
    ]


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ("[" * 60 + "]" * 60, "objects in objects, over 50 deep. Write it as"),
        ('{"a":' * 60 + "0" + "}" * 60, "objects in objects, over 50 deep. Write it"),
        ("[" * 100_000, "brackets in brackets, without end"),
        ("1" * 5000, "a number with thousands of digits"),
    ],
    ids=["lists", "objects", "brackets", "digits"],
)
def test_what_no_reader_can_hold_is_refused(text, received):
    message = f"^TF_CONFIG cannot be read as JSON. Received: {received}"
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_what_schedulers_add_may_be_deep():
    text = '{"a":' * 40 + "0" + "}" * 40
    assert parse(text)


def test_keys_are_taken_as_they_were_meant():
    known = ("cluster", "task")
    assert as_meant({"Cluster": 1, "tasks": 2, "x": 3}, known) == {
        "cluster": 1,
        "task": 2,
    }
    assert as_meant({"tasks": 2, "task": 1}, known) == {"task": 1}


def test_the_nearest_key():
    assert nearest("WORKERS", ("chief", "worker")) == "worker"
    assert nearest("gateway", ("chief", "worker")) == ""


def test_of_thousands_of_keys_some_are_told():
    repeated = "".join(f'"k{number}": 0, ' * 2 for number in range(3000))
    config, findings = tf_config_text.parse(f'{{{repeated}"cluster": {{}}}}')
    unknown = [*unknown_keys(config, ("cluster",), "has", place="place", effect="hang")]

    assert len(findings) == len(unknown) == 50
    assert unknown[0].received.endswith(", k49, ... (2951 more)")
    assert as_meant(config, ("cluster",)) == {"cluster": {}}
