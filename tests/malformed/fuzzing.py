"""Malformed texts, and the rules for their readers."""

import os
import random
import time

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("TFDIST_FUZZ_SECONDS", "0"))
EXAMPLES = 80
MOST_SECONDS = 1.0
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[*HealthCheck],
)

# Other digits, unprintable characters, long numbers, and the signs of every grammar.
STRANGE = (
    *"[](){},:;=-+*/\\\"'@#$%_.|~ \t\n\r\x00",
    *("\u0662", "\u00b2", "\u200b", "\ud800", "\ufeff", "\U0001f600"),
    *("0", "1", "2", "3", "65535", "65536", "-1", "1.5", "1e9", "9" * 19, "9" * 5000),
    *("NaN", "null", "true", "Infinity", "n", "localhost", "::1", "[::1]", "x" * 300),
)


def texts(samples):
    """Texts made of pieces of real ones and strange ones, some of them very often."""
    piece = st.sampled_from([*samples, *STRANGE])
    times = st.sampled_from([1] * 12 + [2, 7, 5000])
    many = st.tuples(piece, times).map(lambda pair: pair[0] * pair[1])
    # Long ones are not of many long pieces, as nothing would come of that but time.
    return st.lists(many, max_size=6).map("".join).map(lambda text: text[:100_000])


@st.composite
def spoilt(draw, samples):
    """Texts in which a part of a real one is replaced, or real ones."""
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        text = text[:start] + draw(texts(())) + text[end:]
    return text


def values(samples):
    """Real texts, spoilt ones, and others."""
    return st.one_of(st.sampled_from(samples), spoilt(samples), texts(samples))


def fuzz(check, strategy, examples=EXAMPLES):
    """Check the same texts as ever, or other ones until the time is over."""
    run = given(strategy)(check)
    if not SECONDS:
        settings(FUZZ, derandomize=True, max_examples=examples)(run)()
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        seed(random.getrandbits(64))(FUZZ(given(strategy)(check)))()


def outcome(function, *arguments):
    """Return a result, or the message of an error in three parts, soon."""
    start = time.process_time()
    try:
        result, message = function(*arguments), ""
    except ValueError as error:
        result, message = None, str(error)
        assert " Received:" in message, message
        assert message.endswith("."), message
    assert time.process_time() - start < MOST_SECONDS
    return result, message
