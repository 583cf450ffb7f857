"""The migrated Horovod script differs from the original in one import and its data."""

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "examples" / "horovod_migration.py"
CHANGES = Path(__file__).with_name("horovod_migration.diff")

# Of the code of the notebook's cells, one after the other, without blanks at the ends
# of lines.
ORIGINAL = "09a6676223cedca8c73d6a1819ca0accb8cef2afe65e6b5681dc86801efc4f0f"


def hunks():
    """Return the hunks of the diff: pairs of lines before and after."""
    parts = re.split(r"^@@.*\n", CHANGES.read_text(), flags=re.M)
    return [
        (
            [line[1:] for line in lines if line[:1] != "+"],
            [line[1:] for line in lines if line[:1] != "-"],
        )
        for lines in map(str.splitlines, parts)
        if lines
    ]


def undo(text, before, after):
    """Put the lines of a hunk back to what they were; they must stand there once."""
    changed, original = ("\n".join(["", *lines, ""]) for lines in (after, before))
    assert text.count(changed) == 1, changed
    return text.replace(changed, original)


def test_without_the_changes_shown_it_is_the_original():
    assert len(hunks()) >= 3
    text = "\n" + PROGRAM.read_text().partition('\n"""\n')[2]
    for before, after in hunks():
        text = undo(text, before, after)

    assert hashlib.sha256(text[1:].encode()).hexdigest() == ORIGINAL
    assert "import horovod.tensorflow.keras as hvd" in text
