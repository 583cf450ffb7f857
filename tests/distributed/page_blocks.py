"""The blocks of code in the pages: README.md, docs/ and the pages of examples/."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of a page: where it stands, its language, and what it holds."""

    page: str
    number: int
    language: str
    text: str

    @property
    def name(self):
        """Where it is, for a person: the page, and which block of its language."""
        return f"{self.page}:{self.language}:{self.number}"


def blocks_of(page, language=None):
    """Return the blocks of a page, numbered among those of the same language."""
    found, count = [], {}
    for _, info, text in FENCE.findall((ROOT / page).read_text()):
        own = info.strip()
        count[own] = count.get(own, -1) + 1
        found.append(Block(page, count[own], own, text))
    return [block for block in found if language in (None, block.language)]


def all_blocks(*languages):
    """Return the blocks of all pages that are in one of some languages."""
    return [
        block
        for page in PAGES
        for block in blocks_of(page)
        if not languages or block.language in languages
    ]
