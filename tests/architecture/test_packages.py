"""The explicit package list of pyproject.toml is what the folders say."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def packages_in(folder, name):
    return {
        ".".join((name, *path.parent.relative_to(folder).parts))
        for path in folder.rglob("__init__.py")
    }


def test_every_folder_with_python_is_installed():
    folders = packages_in(ROOT / "tfdist", "tfdist") | packages_in(
        ROOT / "cli", "tfdist_cli"
    )

    assert set(SETUPTOOLS["packages"]) == folders
    assert len(SETUPTOOLS["packages"]) == len(folders)


def test_the_list_is_sorted():
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])


def test_no_python_file_lies_outside_a_package():
    files = [*(ROOT / "tfdist").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    orphans = [path for path in files if not (path.parent / "__init__.py").exists()]

    assert orphans == []
