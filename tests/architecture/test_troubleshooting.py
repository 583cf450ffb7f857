"""The pages quote existing errors, each with its cause and remedy."""

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
# Messages of a place and a rule, each with a TF_CONFIG that causes it.
OF_TF_CONFIG = {
    "TF_CONFIG has an unknown key ...": '{"clusters": {}, "task": {}}',
    "TF_CONFIG task.index must be an integer.": '{"cluster": {"worker": ["a:1", '
    '"b:1"]}, "task": {"type": "worker", "index": "1"}}',
}


def messages():
    """Return the texts in the sources, with a line break for each filled-in value."""
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
    """Return whether the parts of a quoted message are in one text of the sources."""
    parts = [part.strip() for part in message.split("...")]
    return any(all(part in text for part in parts) for text in MESSAGES)


@pytest.mark.parametrize("message", [*SHORT, *(message for message, _ in ENTRIES)])
def test_a_quoted_message_is_in_the_sources(message):
    if message in OF_TF_CONFIG:
        said = [finding.message for finding in findings(OF_TF_CONFIG[message])]
        start = message.removesuffix("...").rstrip()
        assert any(f"TF_CONFIG {text}".startswith(start) for text in said), said
    else:
        assert occurs(message)


def test_every_heading_has_a_message_with_cause_and_remedy():
    headings = re.findall(r"^### ", PAGE, re.MULTILINE)
    parts = {
        message: re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        for message, text in ENTRIES
    }

    assert len(parts) == len(headings)
    assert all(found == ["Cause", "Remedy"] for found in parts.values()), parts
    assert len({*SHORT, *parts}) > 30
    assert not occurs("The moon is in the wrong place: ...")
