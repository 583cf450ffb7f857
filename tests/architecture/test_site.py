"""The site has a page for every public module, and tells figures that were measured."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

from tfdist_cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLIC = runpy.run_path(str(Path(__file__).with_name("test_public_names.py")))["PUBLIC"]
FIGURES = DOCS / "figures"
API = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))


@pytest.mark.parametrize("module", sorted(set(PUBLIC) - {"tfdist"}))
def test_every_public_module_has_its_reference(module):
    assert re.search(rf"^::: {re.escape(module)}$", API, re.MULTILINE)


def test_every_fact_about_the_process_has_its_reference():
    [names] = re.findall(r"^ +members: \[(rank.*)\]$", API, re.MULTILINE)

    assert {*names.split(", ")} == {
        name for name in PUBLIC["tfdist"] if f"tfdist.{name}" not in PUBLIC
    } - {"__version__", "horovod"}


def test_what_is_horovods_own_is_listed():
    sources = [path.read_text() for path in (ROOT / "tfdist/horovod").glob("*.py")]
    own = re.findall(r"^(\w+) = native\.\w+$", "\n".join(sources), re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", (DOCS / "horovod.md").read_text()))

    assert {"rank", "Average", "join"} <= set(own)
    assert set(own) & PUBLIC["tfdist.horovod"] <= listed


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
    for page in (ROOT / "README.md", DOCS / "index.md", DOCS / "scaling.md"):
        text = page.read_text()
        assert {figure for figure in {*told, "1.78"} if figure in text} == {
            *told,
            "1.78",
        }
