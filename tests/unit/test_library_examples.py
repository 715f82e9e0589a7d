"""What docs/reference/library.md says of the library holds; test_docs.py runs its examples."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.errors import InputError
from snapconv.replay.device_replay import AllocationTable

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "fixtures" / "training_step.pickle"
PAGE = (ROOT / "docs" / "reference" / "library.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def session():
    return snapconv.load(EXAMPLE)


def test_the_page_has_the_public_names():
    for name in snapconv.__all__:
        assert f"`{name}`" in PAGE


def test_the_page_has_every_column_of_an_allocation():
    table = PAGE.split("**`AllocationTable`**", 1)[1].split("\n\n`allocations.live_at", 1)[0]
    described = re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE)
    assert [name for name, _ in described] == [field.name for field in fields(AllocationTable)]


def test_the_columns_have_the_types_that_the_page_says(session):
    allocations = session.devices[0].allocations
    for name, kind in re.findall(
        r"^\| `(\w+)` \| (\w+) \|", PAGE.split("**`AllocationTable`**")[1], re.MULTILINE
    ):
        assert getattr(allocations, name).dtype == np.dtype(kind), name


def test_the_tree_on_the_page_names_what_is_there(session):
    tree = PAGE.split("```\nsession\n", 1)[1].split("```", 1)[0]
    objects = {0: session}
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 3
        if "─" not in line and depth:  # a meaning that takes another line
            continue
        named = line.strip("│├└─ ").split()[0].removesuffix(",")
        value = getattr(objects[depth - 1], named.removesuffix("[i]"))
        objects[depth] = value[0] if named.endswith("[i]") else value


def test_the_first_example_of_the_page_gives_the_peak(session):
    analysis = session.devices[0]
    assert analysis.replay.allocated.peak == session.report().peak.allocated_bytes
    named, first = session.report(analysis.device.device), session.report()
    assert (named.moments, named.weights) == (first.moments, first.weights)
    with pytest.raises(InputError):
        session.report(99)


def columns(value, path="session"):
    """Every array below a value, with where it is."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif is_dataclass(value):
        for field in fields(value):
            yield from columns(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        for item in value:
            yield from () if isinstance(item, str | int) else columns(item, path)


def test_every_column_is_read_only(session):
    found = [
        *columns(session),
        *columns(session.devices[0].weights, "weights"),
        *columns(session.devices[0].facts.roles, "roles"),
    ]  # those are found when asked for
    device = "session.analysis.devices"
    some = {f"{device}.replay.allocations.addr", "roles.has", "weights.row"}
    assert some <= {path for path, _ in found}
    assert [path for path, column in found if column.flags.writeable] == []
