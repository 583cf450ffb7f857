"""MkDocs's hooks: pages from outside of docs/ on the site, copied commands, tables.

In the repository docs/ and examples/ lie side by side, and their pages link to each
other as files. On the site all of them are within docs/, whose index.md is README.md.
"""

import html
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
# What a page of examples may link to, besides pages.
SHOWN = {".md", ".py", ".ipynb", ".yaml", ".sbatch"}
NOTEBOOK = "examples/two_processes.ipynb"
OF_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)")
NOT_ON_THE_SITE = re.compile(r"\[([^\]]*)\]\((?:(?:\.\./)?tests/|LICENSE)[^)]*\)")
CONSOLE = re.compile(r'(<div class="language-console highlight")(>.*?</div>)', re.S)
TABLE = re.compile(r"<table>.*?</table>", re.S)
ROW = re.compile(r"<tr[ >].*?</tr>", re.S)
TAG = re.compile(r"<[^>]+>")


def on_config(config: Any) -> Any:
    """Show the version in the header and in the titles of pages.

    Args:
        config: MkDocs's configuration.

    Returns:
        The same, with another name of the site.
    """
    text = (ROOT / "tfdist" / "__init__.py").read_text()
    [version] = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    config["site_name"] += f" {version}"
    return config


def on_files(files: "Files", config: Any) -> "Files":
    """Add what lies outside of docs/ to the files of the site.

    Args:
        files: What MkDocs has found in docs/.
        config: Its configuration.

    Returns:
        The same, and the others.
    """
    # Here, so that what is below can be tested where MkDocs is not installed.
    from mkdocs.structure.files import File

    readme = str(ROOT / "README.md")
    files.append(File.generated(config, "index.md", abs_src_path=readme))
    examples = sorted((ROOT / "examples").rglob("*"))
    for path in [*(ROOT / name for name in OF_THE_ROOT), *examples]:
        if path.suffix in SHOWN or path.name == "Dockerfile":
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    text = notebook_page((ROOT / NOTEBOOK).read_text())
    name = NOTEBOOK.replace(".ipynb", ".md")
    files.append(File.generated(config, name, content=text))
    return files


def notebook_page(text: str) -> str:
    """Return a Jupyter notebook, with its output, as a page.

    Args:
        text: The file.

    Returns:
        Markdown, with a link to the file.
    """
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        chunks = [line for out in cell["outputs"] for line in out.get("text", ())]
        output = "".join(chunks).replace("\r\n", "\n").rstrip()
        if source.startswith("!"):
            parts.append(f"```console\n$ {source[1:]}\n{output}\n```")
            continue
        parts.append(f"```python\n{source}\n```")
        if output:
            parts.append(f"```text\n{output}\n```")
    file = f'<a href="{posixpath.basename(NOTEBOOK)}" download>Jupyter notebook</a>'
    parts.insert(1, f"Run it yourself: the {file}.")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of a page lead to where files are on the site, or to nowhere.

    Args:
        markdown: The text of the page.
        page: The page.

    Returns:
        The text with other links.
    """
    place = page.file.src_uri
    markdown = NOT_ON_THE_SITE.sub(r"\1", markdown)
    if place in OF_THE_ROOT:
        # These have every word; a search is for the page that explains it.
        page.meta["search"] = {"boost": 0.2}
    return LINK.sub(lambda found: found[1] + moved(found[2], place), markdown)


def moved(target: str, place: str) -> str:
    """Return a link of the repository as a link of the site.

    Args:
        target: The file that is linked to, relative to that of the page.
        place: The page on the site, such as "examples/README.md".

    Returns:
        The file on the site, relative to the page.

    Example:
        >>> moved("../examples/large_batch.py", "callbacks.md")
        'examples/large_batch.py'
        >>> moved("../docs/horovod.md", "examples/README.md")
        '../horovod.md'
        >>> moved("two_processes.ipynb", "examples/README.md")
        'two_processes.md'
    """
    is_outside = place.startswith("examples/") or place in (*OF_THE_ROOT, "index.md")
    here = place if is_outside else f"docs/{place}"
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    on_site = "index.md" if there == "README.md" else there.removeprefix("docs/")
    on_site = on_site.replace(".ipynb", ".md")
    return posixpath.relpath(on_site, posixpath.dirname(place) or ".")


def on_page_content(content: str, **_: Any) -> str:
    """Prepare the console blocks for the copy button, and tables for narrow screens.

    Args:
        content: The HTML of the page.

    Returns:
        The HTML with these changed.
    """

    def copied(block: re.Match[str]) -> str:
        # The name of an attribute in which the theme's copy button looks.
        typed = commands(html.unescape(TAG.sub("", block[0])))
        return f'{block[1]} data-copy="{html.escape(typed)}"{block[2]}'

    content = CONSOLE.sub(copied, content)
    return TABLE.sub(lambda found: with_heads(found[0]), content)


def commands(block: str) -> str:
    """Return what is typed in a console block, without prompts and output.

    Args:
        block: The text; a command continues after a backslash or in single quotes.

    Returns:
        The commands, each on lines of its own.

    Example:
        >>> commands("$ tfdist env")
        'tfdist env'
    """
    typed: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            typed.append(line.removeprefix("$ "))
        elif typed and (typed[-1].endswith("\\") or typed[-1].count("'") % 2):
            typed[-1] += f"\n{line}"
    return "\n".join(typed)


def with_heads(table: str) -> str:
    """Name the column in each cell of a table of prose, which a phone stacks."""
    heads = [TAG.sub("", cell) for cell in re.findall(r"<th\b.*?</th>", table, re.S)]
    cells = [TAG.sub("", cell) for cell in re.findall(r"<td\b.*?</td>", table, re.S)]
    # Figures are compared between rows: such a table scrolls instead.
    if max(map(len, cells), default=0) < 24:
        return table

    def labelled(row: re.Match[str]) -> str:
        names = iter(heads)
        return re.sub(r"<td\b", lambda _: f'<td data-head="{next(names)}"', row[0])

    # A line may end after a dot of a long name, and not within "--epochs".
    table = re.sub(r"(?<=[a-z]\.)(?=[A-Za-z_]{4,}[^<>]*</code>)", "<wbr>", table)
    table = re.sub(r"--[\w-]+(?=[^<>]*<)", r'<span class="option">\g<0></span>', table)
    return ROW.sub(labelled, table).replace("<table>", '<table data-rows="stacked">', 1)
