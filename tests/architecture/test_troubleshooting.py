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


@pytest.mark.parametrize(("message", "text"), ENTRIES)
def test_an_entry_quotes_a_message_with_its_cause_and_remedy(message, text):
    if message in OF_TF_CONFIG:
        said = [finding.message for finding in findings(OF_TF_CONFIG[message])]
        start = message.removesuffix("...").rstrip()
        assert any(f"TF_CONFIG {text}".startswith(start) for text in said), said
    else:
        assert occurs(message)
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Cause", "Remedy"]


def test_every_heading_is_looked_at():
    headings = re.findall(r"^### ", PAGE, re.MULTILINE)

    assert len(ENTRIES) == len(headings) > 40
    assert len({message for message, _ in ENTRIES}) == len(ENTRIES)
    assert not occurs("The moon is in the wrong place: ...")


def test_the_page_of_clusters_explains_existing_errors():
    page = (ROOT / "docs" / "clusters.md").read_text()
    _, _, section = page.partition("## How to read the errors\n")
    errors = re.findall(r"^\| `(.+?)` \|", section.partition("\n## ")[0], re.MULTILINE)
    # The text after a colon of these comes from the system.
    of_the_system = r": (timed out|\[Errno -?\d+\] [\w ]+)$"
    pieces = {
        piece.strip()
        for error in errors
        for piece in re.sub(of_the_system, "", error).split("...")
    }

    assert len(errors) > 10
    messages = "\n".join(MESSAGES)
    assert [piece for piece in pieces if piece not in messages] == []
