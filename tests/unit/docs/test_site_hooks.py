"""Links on the site, commands that are copied, tables."""

import html
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_blocks import all_blocks

FILE = Path(__file__).parents[3] / "docs" / "site_hooks.py"


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("target", "place", "moved"),
    [
        ("horovod.md", "clusters.md", "horovod.md"),
        ("../examples/large_batch.py", "callbacks.md", "examples/large_batch.py"),
        ("../horovod.md", "api/horovod.md", "../horovod.md"),
        ("../docs/horovod.md", "examples/README.md", "../horovod.md"),
        ("../README.md", "clusters.md", "index.md"),
        ("../../CHANGELOG.md", "api/index.md", "../CHANGELOG.md"),
        ("CHANGELOG.md", "CONTRIBUTING.md", "CHANGELOG.md"),
        ("docs/figures/scaling.svg", "index.md", "figures/scaling.svg"),
        ("slurm/README.md", "examples/README.md", "slurm/README.md"),
        ("../examples/two_processes.ipynb", "cookbook.md", "examples/two_processes.md"),
        ("../../docs/clusters.md", "examples/slurm/README.md", "../../clusters.md"),
    ],
)
def test_a_link_leads_to_the_same_page(hooks, target, place, moved):
    assert hooks.moved(target, place) == moved


@pytest.mark.parametrize(
    ("place", "text", "moved"),
    [
        (
            "callbacks.md",
            "[a](https://example.org/b) [c](#d) [e](../examples/README.md#f)",
            "[a](https://example.org/b) [c](#d) [e](examples/README.md#f)",
        ),
        (
            "index.md",
            "[a](tests/b.py), [c](docs/d.md), [e](LICENSE), [f](../tests/g.py)",
            "a, [c](d.md), e, f",
        ),
    ],
    ids=["elsewhere and anchors", "not on the site"],
)
def test_other_links_of_a_page(hooks, place, text, moved):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place))

    assert hooks.on_page_markdown(text, page) == moved


def test_a_notebook_is_a_page_with_its_output(hooks):
    def cell(kind, *source, outputs=()):
        outputs = [{"text": [text]} for text in outputs]
        return {"cell_type": kind, "source": source, "outputs": outputs}

    cells = [
        cell("markdown", "# Title"),
        cell("code", "print(1)\n", "print(2)", outputs=["1\n", "2\n"]),
        cell("code", "!tfdist run x.py", outputs=["[0] 1\r\n"]),
        cell("code", "x = 1"),
    ]

    title, file, *rest = hooks.notebook_page(json.dumps({"cells": cells})).split("\n\n")

    assert (title, 'href="two_processes.ipynb"' in file) == ("# Title", True)
    assert rest == [
        "```python\nprint(1)\nprint(2)\n```",
        "```text\n1\n2\n```",
        "```console\n$ tfdist run x.py\n[0] 1\n```",
        "```python\nx = 1\n```",
    ]


def test_the_notebook_has_been_run_and_shows_no_lines_of_tensorflows_start(hooks):
    cells = json.loads((FILE.parents[1] / hooks.NOTEBOOK).read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]

    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert ".cc:" not in "".join("".join(output["text"]) for output in outputs)
    assert outputs[-1]["text"] == ["equal\n"]


def test_a_prompt_is_in_a_console_block_only():
    """By this word the site knows where prompts are to be left out."""
    others = [block for block in all_blocks() if block.language != "console"]

    assert [b.name for b in others if re.search(r"^\$ ", b.text, re.MULTILINE)] == []


@pytest.mark.parametrize("block", all_blocks("console"), ids=lambda block: block.name)
def test_commands_are_copied_without_prompts(hooks, block):
    typed = hooks.commands(block.text)

    prompts = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)
    assert [line for line in prompts if line not in typed.splitlines()] == []
    assert not re.search(r"^(\$|>) ", typed, re.MULTILINE)


def test_output_is_not_copied_and_continued_commands_are(hooks):
    block = "$ a \\\n    b\nout\n# out\n$ c='1\n  2'\nout\n\n$ d\n"
    code = html.escape(block).replace("$ ", '<span class="gp">$ </span>')
    console = f'<div class="language-console highlight"><code>{code}</code></div>'

    changed = hooks.on_page_content(f"{console}<p>$ e</p>")

    [copied] = re.findall(r'data-copy="([^"]*)"', changed)
    assert html.unescape(copied) == "a \\\n    b\nc='1\n  2'\nd"
    assert changed.endswith(f">{code}</code></div><p>$ e</p>")


TABLE = """<table><thead><tr><th>you <b>have</b></th><th></th></tr></thead>
<tbody><tr><td>{}</td><td><code>tf.dev --ps</code></td></tr></tbody></table>"""


def test_cells_of_prose_name_their_columns(hooks):
    prose = '<a href="#a--bc">a sentence</a> of some length'

    changed = hooks.on_page_content(TABLE.format(prose))

    assert f'<td data-head="you have">{prose}</td>' in changed
    assert '<code>tf.dev <span class="option">--ps</span></code>' in changed
    assert 'data-rows="stacked"' in changed


def test_a_table_of_figures_stays(hooks):
    table = TABLE.format("1.78")

    assert hooks.on_page_content(table) == table
