"""docs/troubleshooting.md quotes errors that there are, and says what to do."""

import ast
import re
from pathlib import Path

import pytest

from tfdist.cluster.tf_config import findings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ENTRY = re.compile(r"^### (`+)(.+?)\1\n\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = [(message, text) for _, message, text in ENTRY.findall(PAGE)]
# Messages that need no more than a remedy.
SHORT = [message for _, message in re.findall(r"^- (`+)(.+?)\1: ", PAGE, re.MULTILINE)]
# Put together from a place and a rule; a TF_CONFIG that is so wrong says them.
OF_TF_CONFIG = {
    "TF_CONFIG has an unknown key ...": '{"clusters": {}, "task": {}}',
    "TF_CONFIG task.index must be an integer.": '{"cluster": {"worker": ["a:1", '
    '"b:1"]}, "task": {"type": "worker", "index": "1"}}',
}


def messages():
    """Return the texts in the sources, with a line break for what is filled in."""
    found = []
    for path in (ROOT / "tfdist").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "") for part in node.values]
                texts = [part if isinstance(part, str) else "\n" for part in parts]
                found.append("".join(texts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"\{\w*\}", "\n", node.value))
    return found


MESSAGES = messages()


def occurs(message):
    """Say whether the parts of a quoted message are in one text of the sources."""
    parts = [part.strip() for part in message.split("...")]
    return any(all(part in text for part in parts) for text in MESSAGES)


@pytest.mark.parametrize("message", [*SHORT, *(message for message, _ in ENTRIES)])
def test_the_message_is_one_of_ours(message):
    if message in OF_TF_CONFIG:
        said = [finding.message for finding in findings(OF_TF_CONFIG[message])]
        start = message.removesuffix("...").rstrip()
        assert any(f"TF_CONFIG {text}".startswith(start) for text in said), said
    else:
        assert occurs(message)


@pytest.mark.parametrize(("message", "text"), ENTRIES)
def test_each_has_a_cause_and_a_remedy(message, text):
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Cause", "Remedy"]


def test_every_heading_of_a_message_is_looked_at():
    headings = re.findall(r"^### ", PAGE, re.MULTILINE)

    assert len(ENTRIES) == len(headings)
    assert len({*SHORT, *(message for message, _ in ENTRIES)}) > 40


def test_a_message_of_nobody_is_noticed():
    assert not occurs("The moon is in the wrong place: ...")
