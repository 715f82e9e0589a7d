"""Columns flow down, never up: who may import whom, and who may read a snapshot's raw data.

    devices, errors, units, notes, version  ->  snapshot  ->  analysis  ->  reports  ->  explain
        ->  sources  ->  convert, describe, session
        ->  terminal, cli, record_cli, params_cli, __main__, __init__

The recorder stands beside them: it imports the first five, and torch inside functions.
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "snapconv"
MODULES = sorted(PACKAGE.rglob("*.py"))

BASE = {"devices", "errors", "units", "notes", "version"}
OFFLINE = {"snapshot", "analysis", "classification", "reports", "explain", "sources"}
LIBRARY = {"convert", "describe", "session"}
DOOR = {"terminal", "cli", "record_cli", "params_cli", "__main__", "__init__"}
# The one file beside snapshots that is read: a user's own rules.
READS_RULES = PACKAGE / "classification" / "user_rules_file.py"
MAY_IMPORT = {
    **{room: set() for room in BASE},
    "snapshot": BASE | {"snapshot"},
    "analysis": BASE | {"snapshot", "analysis", "classification"},
    "classification": BASE | {"snapshot", "analysis", "classification"},
    "reports": BASE | {"snapshot", "analysis", "classification", "reports"},
    "recorder": BASE | {"recorder"},
    "explain": BASE | {"snapshot", "analysis", "classification", "reports"},
    "sources": BASE | {"snapshot", "analysis", "classification"},
    **{
        room: BASE | {"snapshot", "analysis", "classification", "reports", "explain", "sources"}
        for room in LIBRARY
    },
    **{
        room: BASE
        | LIBRARY
        | DOOR
        | {"snapshot", "analysis", "classification", "reports", "explain", "sources", "recorder"}
        for room in DOOR
    },
}
MAY_IMPORT_FROM_OUTSIDE = {
    **{room: set() for room in BASE | DOOR},
    **{room: {"numpy"} for room in LIBRARY | {"explain", "sources"}},
    "snapshot": {"numpy", "orjson"},
    "analysis": {"numpy"},
    "classification": {"numpy", "tomllib"},  # which Python 3.10 does not have
    "reports": {"numpy", "orjson"},
    "recorder": {"torch", "orjson"},
    "cli": {"typer"},
    "terminal": {"rich", "orjson"},
    "record_cli": {"typer"},
    "params_cli": {"typer", "orjson"},
}
# The formats in which snapshots come. Outside snapshot/ they may be written, never read.
FORMATS = {"pickle", "_pickle", "json", "orjson"}
WRITES_FORMATS = {"reports", "recorder", "terminal", "params_cli"}
READING = {"load", "loads", "Unpickler", "JSONDecoder"}
RAW_KEYS = {
    "device_traces",
    "segments",
    "host_traces",
    "host_segments",
    "blocks",
    "requested_size",
    "segment_type",
    "segment_pool_id",
    "allocator_settings",
}


class Import(NamedTuple):
    """One imported module or name, dotted: ``snapconv.snapshot.load``."""

    target: str
    line: int
    is_inside_function: bool


def room_of(path: Path) -> str:
    """The package or top-level module of snapconv that a file belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def room_of_target(target: str) -> str:
    """The room that a dotted import leads to; what ``snapconv`` itself offers comes from __init__."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"


def package_of(path: Path) -> list[str]:
    """The dotted package that relative imports of a file start from, as parts."""
    return ["snapconv", *path.relative_to(PACKAGE).parent.parts]


def imports_of(tree: ast.AST, package: list[str]) -> list[Import]:
    """Every import of a file, wherever it stands, under ``TYPE_CHECKING`` too."""
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*start, *filter(None, [node.module])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [Import(name, node.lineno, id(node) in inner) for name in names]
    return found


def may_import_format(room: str, target: str) -> bool:
    """Whether a room may import a format's module: to read in snapshot/, to write in a few more."""
    return room == "snapshot" or (room in WRITES_FORMATS and target.split(".")[-1] not in READING)


def faults(source: str, path: Path) -> list[str]:
    """Everything in a file's source that breaks the layers, as ``line: what``."""
    tree = ast.parse(source)
    room = room_of(path)
    found = []
    for target, line, is_inside_function in imports_of(tree, package_of(path)):
        top = target.split(".")[0]
        if top == "snapconv":
            if room_of_target(target) not in MAY_IMPORT[room]:
                found.append(f"{line}: {room} imports {target}")
        elif top == "torch" and room == "recorder":
            if not is_inside_function:
                found.append(f"{line}: torch is imported outside a function")
        elif top not in sys.stdlib_module_names | MAY_IMPORT_FROM_OUTSIDE[room]:
            found.append(f"{line}: {room} imports {target}")
        elif top == "importlib" and room not in DOOR | {"recorder"}:
            found.append(f"{line}: {room} imports by name, which hides the layer")
        elif top in FORMATS and path != READS_RULES and not may_import_format(room, target):
            found.append(f"{line}: {room} imports {target}, only snapshot reads")
    return found + ([] if room == "snapshot" or path == READS_RULES else raw_reads(tree, room))


def raw_reads(tree: ast.AST, room: str) -> list[str]:
    """Places that parse a file, or look up a key of torch's dictionaries."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in FORMATS and name in READING:
                found.append(f"{node.lineno}: {room} calls {module}.{name}, only snapshot reads")
            case (
                ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load())
                | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_])
            ) if key in RAW_KEYS and room != "recorder":
                found.append(f"{node.lineno}: {room} looks up {key!r} in a raw dictionary")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_reaches_up_or_reads_raw_data(path: Path):
    assert faults(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_belongs_to_a_room(path: Path):
    assert room_of(path) in MAY_IMPORT


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors.py", "from snapconv import units"),
        ("snapshot/load.py", "from snapconv.analysis.replay import replay"),
        ("snapshot/load.py", "from snapconv import analysis"),
        ("snapshot/load.py", "from ..analysis import replay"),
        ("snapshot/load.py", "from snapconv import load"),
        ("snapshot/load.py", "import importlib"),
        ("snapshot/load.py", "import torch"),
        ("analysis/replay.py", "import snapconv.reports.report"),
        ("analysis/replay.py", "def f():\n    from snapconv.reports import report"),
        ("analysis/replay.py", "if TYPE_CHECKING:\n    from snapconv.reports import report"),
        ("analysis/replay.py", "import pickle"),
        ("analysis/replay.py", "import orjson"),
        ("analysis/replay.py", "events = raw['device_traces']"),
        ("analysis/replay.py", "size = block.get('requested_size', 0)"),
        ("reports/report.py", "from snapconv.cli import main"),
        ("reports/report.py", "import json\njson.loads('1')"),
        ("reports/report.py", "from pickle import load"),
        ("reports/report.py", "from snapconv.recorder import entry"),
        ("recorder/entry.py", "import torch"),
        ("recorder/entry.py", "def f():\n    import numpy"),
        ("recorder/entry.py", "from snapconv.snapshot import load"),
        ("cli.py", "import numpy"),
        ("terminal.py", "import pickle\npickle.load(file)"),
    ],
)
def test_the_walk_finds_an_upward_import(module: str, source: str):
    assert len(faults(source, PACKAGE / module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("snapshot/load.py", "import pickle\nfrom snapconv.errors import InputError\nraw['device_traces']"),
        ("snapshot/load.py", "from . import stacks\nfrom .events import EventTable\nimport numpy as np"),
        ("analysis/replay.py", "from snapconv import notes\nfrom snapconv.snapshot import load"),
        ("reports/report.py", "import json, sqlite3\njson.dumps(1)"),
        (
            "recorder/entry.py",
            "import pickle, importlib\ndef f():\n    import torch.cuda\n    pickle.dump({}, file)",
        ),
        ("recorder/entry.py", "entry['requested_size'] = 1"),
        ("cli.py", "import typer\nimport snapconv\nfrom snapconv.snapshot.load import load_snapshot"),
        ("__init__.py", "import importlib"),
    ],
)
def test_the_walk_lets_a_downward_import_pass(module: str, source: str):
    assert faults(source, PACKAGE / module) == []
