import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.artefacts.yaml_text import to_yaml

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]))
VALUES = st.recursive(
    st.integers()
    | st.booleans()
    | TEXT
    | st.sampled_from(["no", "1e3", "null", "a: b"]),
    lambda value: st.lists(value) | st.dictionaries(TEXT, value),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, database=None, max_examples=40)
@given(st.lists(st.dictionaries(TEXT, VALUES, min_size=1), min_size=1, max_size=3))
def test_what_is_written_is_read_back(documents):
    assert list(yaml.safe_load_all(to_yaml(documents))) == documents


def test_keys_keep_their_order_and_long_lines_stay_whole():
    text = to_yaml([{"b": "x " * 500 + "y", "a": "1"}])

    assert [line[:2] for line in text.splitlines()] == ["b:", "a:"]


def test_the_library_is_loaded_only_to_write(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(ImportError):
        to_yaml([{}])
