"""Pages name existing files, commands, public modules and measured figures."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest
import yaml

from tfdist_cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DOCS = ROOT / "docs"
CONSOLE = re.compile(
    r"^```(?:console|bash|shell|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")

# Files of the reader, not of the repository.
READERS_FILES = {"train.py", "hosts.txt"}
PUBLIC = runpy.run_path(str(Path(__file__).with_name("test_public_names.py")))["PUBLIC"]
FIGURES = DOCS / "figures"
API = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))


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


def test_links_and_commands_name_existing_files():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {p.name for p in PAGES}
    seen = set()
    for page in PAGES:
        text = page.read_text()
        commands = command_lines(text)
        files = [ROOT / path for command in commands for path in paths_in(command)]
        seen.update(files)
        files += [page.parent / target for target in LINK.findall(text)]

        assert [path for path in files if not path.exists()] == [], name_of(page)
    assert ROOT / "benchmarks" / "backup.py" in seen


def test_make_targets_exist():
    commands = [line for page in PAGES for line in command_lines(page.read_text())]
    used = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(commands)))
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = set(re.findall(r"^make ([a-z-]+)", done.stdout, re.MULTILINE))

    assert used <= known


def test_every_public_module_has_its_reference():
    documented = set(re.findall(r"^::: (\S+)$", API, re.MULTILINE))

    assert set(PUBLIC) - {"tfdist"} <= documented


def test_every_fact_about_the_process_has_its_reference():
    [names] = re.findall(r"^ +members: \[(rank.*)\]$", API, re.MULTILINE)

    assert {*names.split(", ")} == {
        name for name in PUBLIC["tfdist"] if f"tfdist.{name}" not in PUBLIC
    } - {"__version__", "horovod", "launch"}


def test_no_page_is_fetched_from_elsewhere():
    """Fonts and scripts of other hosts would be, by the theme's defaults."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    assert site["theme"]["font"] is False
    assert site["strict"] is True
    assert "extra_javascript" not in site


def test_the_figures_are_those_of_the_curve(capsys):
    files = [str(FIGURES / f"{size}.json") for size in (1, 2)]

    assert main(["report", *files]) == 0
    lines = capsys.readouterr().out.splitlines()[2:4]
    (_, _, alone, *_), (_, _, both, speedup, _) = (
        line.split("|")[1:-1] for line in lines
    )
    told = {alone.partition(".")[0].strip(), both.partition(".")[0].strip()}

    assert speedup.strip() == "1.78"
    text = (DOCS / "scaling.md").read_text()
    assert {figure for figure in {*told, "1.78"} if figure in text} == {*told, "1.78"}


def test_pages_that_name_tensorboard_say_how_to_install_it():
    texts = [page.read_text() for page in DOCS.rglob("*.md")]
    naming = [text for text in texts if "`TensorBoard`" in text]

    assert naming
    assert all("pip install tensorboard" in text for text in naming)


def test_the_figure_of_a_job_names_every_engine(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    (engines,) = re.findall(r"--collective \{auto,([a-z,]+)\}", text)
    text = (FIGURES / "architecture.svg").read_text().lower()

    named = re.findall(r">collectives: (.*)</text>", text)
    assert named == [engines.replace(",", ", ")] * 2


def test_the_scripts_of_the_cookbook_have_the_lines_that_it_shows():
    text = (DOCS / "cookbook.md").read_text()
    diff = re.search(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    shown = {line.removeprefix("+") for line in diff.splitlines()}
    scripts = re.findall(r"^\$ tfdist run -np 2 (examples/\S+)", text, re.MULTILINE)

    assert len(scripts) == 3
    for script in scripts:
        lines = (ROOT / script).read_text().splitlines()
        assert shown <= {*lines}, script
        assert len(lines) <= 60
