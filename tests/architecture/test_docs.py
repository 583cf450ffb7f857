"""The prose keeps up with the tree: links, paths and commands name what exists."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CONSOLE = re.compile(
    r"^```(?:console|bash|shell|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")

# What a command names that is the reader's own, not the repository's.
READERS_FILES = {"train.py", "hosts.txt"}


def name_of(path):
    return str(path.relative_to(ROOT))


def command_lines(text):
    """Return the commands in the blocks of a page, without prompts and comments."""
    lines = "".join(CONSOLE.findall(text)).replace("\\\n", " ").splitlines()
    prompted = [line for line in lines if line.startswith("$ ")]
    return [line.removeprefix("$ ").split(" # ")[0] for line in prompted or lines]


def paths_in(command):
    """Return the words of a command that look like a file of the repository."""
    words = command.split()
    return [
        word
        for word in words
        if re.fullmatch(r"[\w./-]+\.(py|toml|md|sh|yaml|txt)", word)
        and not word.startswith(("/", "-"))
        and word not in READERS_FILES
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    missing = [
        target
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_name_files_that_exist(page):
    missing = [
        path
        for command in command_lines(page.read_text())
        for path in paths_in(command)
        if not (ROOT / path).exists()
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page):
    used = set(
        re.findall(r"\bmake ([a-z-]+)", "\n".join(command_lines(page.read_text())))
    )
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = set(re.findall(r"^make ([a-z-]+)", done.stdout, re.MULTILINE))

    assert used <= known


def test_there_are_pages():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {p.name for p in PAGES}


def test_a_path_in_a_command_is_seen():
    page = (
        "```console\n$ tfdist run -np 2 examples/x.py --a 1  # see y.md\nout.py\n```\n"
    )

    assert command_lines(page) == ["tfdist run -np 2 examples/x.py --a 1 "]
    assert paths_in(command_lines(page)[0]) == ["examples/x.py"]
