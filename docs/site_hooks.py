"""What MkDocs does for the site beside docs/: it takes in examples/ and CHANGELOG.md.

In the repository docs/ and examples/ lie side by side, and their pages link to each
other as files. On the site all of them are within docs/, whose index.md is README.md.
"""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
# What a page of examples may link to, besides pages.
SHOWN = {".md", ".py", ".yaml", ".sbatch"}
OF_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md")
LINK = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)")
LINK_TO_A_TEST = re.compile(r"\[([^\]]*)\]\(tests/[^)]*\)")


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
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of a page lead to where files are on the site, or to nowhere.

    Args:
        markdown: The text of the page.
        page: The page.

    Returns:
        The text with other links.
    """
    place = page.file.src_uri
    markdown = LINK_TO_A_TEST.sub(r"\1", markdown)
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
    """
    is_outside = place.startswith("examples/") or place in (*OF_THE_ROOT, "index.md")
    here = place if is_outside else f"docs/{place}"
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    on_site = "index.md" if there == "README.md" else there.removeprefix("docs/")
    return posixpath.relpath(on_site, posixpath.dirname(place) or ".")
