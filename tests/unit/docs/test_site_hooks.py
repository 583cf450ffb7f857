"""Where links of the repository lead to on the site."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

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
        ("../../docs/clusters.md", "examples/slurm/README.md", "../../clusters.md"),
    ],
)
def test_a_link_leads_to_the_same_page(hooks, target, place, moved):
    assert hooks.moved(target, place) == moved


def test_links_to_elsewhere_and_anchors_stay(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="callbacks.md"))
    text = "[a](https://example.org/b) [c](#d) [e](../examples/README.md#f)"

    moved = hooks.on_page_markdown(text, page)

    assert moved == "[a](https://example.org/b) [c](#d) [e](examples/README.md#f)"


def test_tests_are_not_on_the_site(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))

    text = "[a](tests/b.py), [c](docs/d.md)"

    assert hooks.on_page_markdown(text, page) == "a, [c](d.md)"
