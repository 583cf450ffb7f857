"""The tables of docs/horovod.md against the installed Horovod and against ours."""

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.requires("horovodrun"), pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "horovod.md"
MODULES = ("horovod.tensorflow.keras", "horovod.keras")
# Heading of the table -> what Horovod calls it within these modules, and we.
TABLES = {"hvd": "", "hvd.callbacks": ".callbacks", "hvd.elastic": ".elastic"}
STATES = {"same", "made right", "changed", "raises"}


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    modules: frozenset[str]
    state: str
    remark: str


def rows_under(heading):
    """Return the names under a heading of the page, in its table or its lists."""
    section = PAGE.read_text().partition(f"### `{heading}`\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.*?) ?\|$", section, re.M)
    lists = re.findall(
        r"^- Same, in (both|`[\w.]+`)[^:]*: ((?:`\w+`[,.]\s+)+)", section, re.M
    )
    cells = rows + [
        (name, where, "same", "")
        for where, names in lists
        for name in re.findall(r"\w+", names)
    ]
    assert len(cells) == len({name for name, *_ in cells})
    return {
        name: Row(
            frozenset(MODULES if where == "both" else [where.strip("`")]), state, remark
        )
        for name, where, state, remark in cells
    }


def definitions_in(module):
    """Return the public names of a module of Horovod, with what they stand for."""
    is_part = {"callbacks", "elastic"}.__contains__
    return {
        name: value
        for name, value in vars(importlib.import_module(module)).items()
        if not name.startswith("_")
        and (is_part(name) or not inspect.ismodule(value))
        and name != "is_version_greater_equal_than"
    }


def parameters_of(definition):
    """Return the names of the arguments of a function, or of a class."""
    parameters = inspect.signature(definition).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def table_cases():
    return [(heading, module) for heading in TABLES for module in MODULES]


@pytest.mark.parametrize(("heading", "module"), table_cases())
def test_the_table_holds_every_public_name(heading, module):
    listed = {
        name for name, row in rows_under(heading).items() if module in row.modules
    }

    assert listed == set(definitions_in(module + TABLES[heading]))


@pytest.mark.parametrize("heading", TABLES)
def test_each_name_is_in_the_state_that_the_table_says(heading):
    ours = importlib.import_module(f"tfdist.horovod{TABLES[heading]}")
    rows = rows_under(heading)

    assert {row.state for row in rows.values()} <= STATES
    assert all(row.remark for row in rows.values() if row.state != "same")
    assert [name for name in rows if not hasattr(ours, name)] == []


@pytest.mark.parametrize(("heading", "module"), table_cases())
def test_arguments_are_horovods_in_its_order(heading, module):
    ours = importlib.import_module(f"tfdist.horovod{TABLES[heading]}")
    rows = rows_under(heading)
    different = {}
    for name, definition in definitions_in(module + TABLES[heading]).items():
        is_own = getattr(definition, "__module__", "") == module + TABLES[heading]
        if not is_own or rows[name].state == "changed":
            continue
        expected = parameters_of(definition)
        found = [*inspect.signature(getattr(ours, name)).parameters]
        if found[: len(expected)] != expected:
            different[name] = (expected, found)

    assert different == {}


def test_what_changed_has_the_arguments_of_tensorflow_keras():
    ours = importlib.import_module("tfdist.horovod")
    for heading, dots in TABLES.items():
        definitions = definitions_in(MODULES[0] + dots)
        for name, row in rows_under(heading).items():
            if row.state == "changed":
                expected = parameters_of(definitions[name])
                owner = getattr(ours, dots[1:]) if dots else ours
                found = [*inspect.signature(getattr(owner, name)).parameters]
                assert found[: len(expected)] == expected


def test_what_raises_says_what_to_write_instead():
    ours = importlib.import_module("tfdist.horovod")
    raising = [name for name, row in rows_under("hvd").items() if row.state == "raises"]

    assert raising == ["broadcast_global_variables"]
    with pytest.raises(RuntimeError, match=r"Write broadcast_variables\(model\."):
        ours.broadcast_global_variables(0)


def test_further_names_are_there():
    ours = importlib.import_module("tfdist.horovod")
    text = PAGE.read_text()
    (paragraph,) = re.findall(r"^`horovod\.tensorflow` adds .*?\n\n", text, re.M | re.S)
    names = set(re.findall(r"`(\w+)`", paragraph))
    listed = names | set(rows_under("hvd"))

    assert listed == set(ours.__all__)
    assert "TensorFlowState" in ours.elastic.__all__
