import pytest

from tfdist.rendezvous.start_timeout import start_timeout_seconds


def test_without_a_word_it_is_the_default(monkeypatch):
    monkeypatch.delenv("TFDIST_START_TIMEOUT", raising=False)

    assert start_timeout_seconds(7.0) == 7.0
    assert start_timeout_seconds(7.0, {"TFDIST_START_TIMEOUT": ""}) == 7.0


def test_the_launcher_may_say_it(monkeypatch):
    monkeypatch.setenv("TFDIST_START_TIMEOUT", "2.5")

    assert start_timeout_seconds(7.0) == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_what_is_no_time_is_refused(text):
    message = f"^TFDIST_START_TIMEOUT must be a positive number of seconds. .*'{text}'"
    with pytest.raises(ValueError, match=message):
        start_timeout_seconds(7.0, {"TFDIST_START_TIMEOUT": text})
