"""Columns flow down, never up: which package may import which, and which may read a snapshot's raw data.

``LAYERS`` has the order, lowest first: a package imports those above it in the list, never those
below. ``GUEST_LAYERS`` run in somebody else's program and stand apart: they import the first two
layers, what is known of torch and the allocator, and the guests below them. The lowest and the
recorder import torch only inside functions; so does the simulation where its options are read.
"""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "snapconv"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    {"errors", "mesh", "notes", "stop_signals", "units", "version"},
    {"files", "json_text"},
    {"torch_knowledge"},
    {"allocator"},
    {"columns"},
    {"native"},
    {"snapshot"},
    {"stacks"},
    {"replay"},
    {"phases"},
    {"classification"},
    {"naming"},
    {"analysis"},
    {"hypotheses"},
    {"answers"},
    {"writers"},
    {"convert"},
    {"notebook", "printed_answers", "answer_types"},
    {"session"},
    {"ranks"},
    {"fitting"},
)
GROUND = LAYERS[0] | LAYERS[1]
LIBRARY = {package for layer in LAYERS for package in layer}
COMMANDS = {"cli", "__init__", "__main__", "pytest_plugin"}
MAY_IMPORT = {
    package: {other for below in LAYERS[:height] for other in below} | {package}
    for height, layer in enumerate(LAYERS)
    for package in layer
}
# What logs or shows the figures of captures reads them, when training, or a notebook's cell, is over.
MAY_IMPORT["integrations"] = GROUND | {
    *("integrations", "answers", "session"),
    *("guest", "simulation", "recorder"),
}
GUEST_LAYERS = ("guest", "simulation", "recorder")
GUEST = set(GUEST_LAYERS)
READ_BEFORE_TORCH = {
    PACKAGE / "simulation" / f"{name}.py"
    for name in ("__init__", "machine", "history", "memory_stats", "stacks")
}
MAY_IMPORT |= {
    package: GROUND | {"torch_knowledge", "allocator"} | set(GUEST_LAYERS[: height + 1])
    for height, package in enumerate(GUEST_LAYERS)
}
MAY_IMPORT |= dict.fromkeys(COMMANDS, LIBRARY | COMMANDS | GUEST)
MAY_IMPORT["__init__"] = MAY_IMPORT["__init__"] | {"integrations"}  # which IPython loads
OFFLINE = LIBRARY - GROUND - {"torch_knowledge", "allocator"}
MAY_IMPORT_FROM_OUTSIDE = (
    {package: set() for package in MAY_IMPORT}
    | {package: {"numpy"} for package in OFFLINE}
    | {
        "json_text": {"orjson"},
        "classification": {"numpy", "tomllib", "tomli"},  # tomli: where Python 3.10 has no tomllib
        "guest": {"torch"},
        # Inside functions: an extra, and launchers of the user, whose lines they read.
        "recorder": {"torch", "fsspec", "accelerate", "deepspeed"},
        "simulation": {"torch"},
        "ranks": {"numpy", "distributed", "dask", "fsspec"},  # inside functions: extras
        "cli": {"typer", "rich", "anyio", "mcp"},  # the last two inside functions: an extra
        "pytest_plugin": {"pytest"},
        # torch inside a function: TensorBoard's writer, where the run has it.
        "integrations": {"transformers", "lightning", "pytorch_lightning", "IPython", "torch"},
    }
)
# Writes the header of a file of safetensors for the program.
WRITES_HEADERS = PACKAGE / "simulation" / "unwritten_files.py"
# The formats in which snapshots come. Outside snapshot/ they may be written, never read.
# JSON is written by all, through json_text.
FORMATS = {"pickle", "_pickle", "json", "orjson"}
WRITES_FORMATS = {"writers", "recorder"}
READING = {"load", "loads", "Unpickler", "JSONDecoder"}
JSON_READERS = {"snapconv.json_text.read_json"}
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


def package_name(path: Path) -> str:
    """The package or top-level module of snapconv that a file belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def package_of_import(target: str) -> str:
    """The package that a dotted import leads to; what ``snapconv`` itself offers comes from __init__."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"


def parent_package(path: Path) -> list[str]:
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


def may_import_format(package: str, target: str) -> bool:
    """Return whether a package may import the module of a format."""
    if target.split(".")[0] in ("json", "orjson"):
        return package == "json_text"
    return package == "snapshot" or (
        package in WRITES_FORMATS and target.split(".")[-1] not in READING
    )


def faults(source: str, path: Path) -> list[str]:
    """Everything in a file's source that breaks the layers, as ``line: what``."""
    tree = ast.parse(source)
    package = package_name(path)
    found = []
    for target, line, is_inside_function in imports_of(tree, parent_package(path)):
        top = target.split(".")[0]
        if top == "snapconv":
            if target in JSON_READERS and package not in {
                "snapshot",
                "ranks",
                "recorder",
            }:  # ranks/ and recorder/ read what they wrote
                found.append(f"{line}: {package} imports {target}, only snapshot reads")
            if package_of_import(target) not in MAY_IMPORT[package]:
                found.append(f"{line}: {package} imports {target}")
        elif top == "torch" and package in GUEST:
            is_early = package != "simulation" or path in READ_BEFORE_TORCH
            if is_early and not is_inside_function:
                found.append(f"{line}: torch is imported outside a function")
        elif top not in sys.stdlib_module_names | MAY_IMPORT_FROM_OUTSIDE[package]:
            found.append(f"{line}: {package} imports {target}")
        elif top == "importlib" and package not in COMMANDS | GUEST:
            found.append(f"{line}: {package} imports by name, which hides the layer")
        elif top in FORMATS and path != WRITES_HEADERS and not may_import_format(package, target):
            found.append(f"{line}: {package} imports {target}, only snapshot reads")
    return found + ([] if package in {"snapshot", "json_text"} else raw_reads(tree, path))


def raw_reads(tree: ast.AST, path: Path) -> list[str]:
    """Places that parse a file, or look up a key of torch's dictionaries."""
    found, package = [], package_name(path)
    may_look_up = package in GUEST | {"allocator"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(
                value=ast.Name(id=module) | ast.Attribute(attr=module), attr=name
            ) if module in FORMATS and name in READING and path != WRITES_HEADERS:
                found.append(f"{node.lineno}: {package} calls {module}.{name}, only snapshot reads")
            case (
                ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load())
                | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_])
            ) if key in RAW_KEYS and not may_look_up:
                found.append(f"{node.lineno}: {package} looks up {key!r} in a raw dictionary")
    return found


def test_no_module_reaches_up_or_reads_raw_data_and_each_belongs_to_a_layer():
    found = {str(path): faults(path.read_text(encoding="utf-8"), path) for path in MODULES}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    assert {package_name(path) for path in MODULES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors.py", "from snapconv import units"),
        ("snapshot/load.py", "from snapconv.replay.device_replay import replay"),
        ("snapshot/load.py", "from ..replay import lifetimes"),
        ("snapshot/load.py", "from snapconv import load"),
        ("snapshot/load.py", "import importlib"),
        ("replay/device_replay.py", "def f():\n    from snapconv.writers import memory_report"),
        (
            "replay/device_replay.py",
            "if TYPE_CHECKING:\n    from snapconv.writers import memory_report",
        ),
        ("replay/device_replay.py", "import orjson"),
        ("replay/device_replay.py", "from snapconv.json_text import read_json"),
        ("replay/device_replay.py", "events = raw['device_traces']"),
        ("replay/device_replay.py", "size = block.get('requested_size', 0)"),
        ("writers/memory_report.py", "import json"),
        ("writers/memory_report.py", "from pickle import load"),
        ("allocator/blocks.py", "from snapconv.recorder.program.entry import Entry"),
        ("recorder/program/entry.py", "import torch"),
        ("guest/guard.py", "import torch"),
        ("guest/guard.py", "from snapconv.recorder.driver import Driver"),
        ("simulation/machine.py", "from snapconv.recorder.driver import Driver"),
        ("simulation/machine.py", "import torch"),
        ("replay/device_replay.py", "from snapconv.simulation import simulated"),
        ("recorder/program/entry.py", "def f():\n    import numpy"),
        ("cli/app.py", "import numpy"),
        ("writers/memory_report.py", "import pickle\npickle.load(file)"),
    ],
)
def test_the_walk_finds_an_upward_import(module: str, source: str):
    assert len(faults(source, PACKAGE / module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "snapshot/load.py",
            "import pickle\nfrom snapconv.errors import InputError\nraw['device_traces']",
        ),
        (
            "snapshot/load.py",
            "from . import fields\nfrom .event_table import EventTable\nimport numpy",
        ),
        (
            "replay/device_replay.py",
            "from snapconv import notes\nfrom snapconv.snapshot import load",
        ),
        ("writers/memory_report.py", "import sqlite3\nfrom snapconv.json_text import write_json"),
        (
            "recorder/program/entry.py",
            "import pickle, importlib\ndef f():\n    import torch.cuda\n    pickle.dump({}, file)",
        ),
        ("recorder/program/entry.py", "entry['requested_size'] = 1"),
        ("recorder/record.py", "from snapconv.simulation import simulated"),
        (
            "cli/app.py",
            "import typer\nimport snapconv\nfrom snapconv.snapshot.load import load_snapshot",
        ),
        ("__init__.py", "import importlib"),
    ],
)
def test_the_walk_lets_a_downward_import_pass(module: str, source: str):
    assert faults(source, PACKAGE / module) == []


def file_of(target: str) -> Path | None:
    """The file of the package that an imported module, or name in a module, leads to."""
    parts = target.split(".")
    if parts[0] != "snapconv":
        return None
    for n_parts in (len(parts), len(parts) - 1):
        path = PACKAGE.joinpath(*parts[1:n_parts])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def files_imported(path: Path) -> set[str]:
    """The files that a file imports, inside functions and for types alone too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    files = {file_of(target) for target, *_ in imports_of(tree, parent_package(path))} - {path}
    return {file.relative_to(PACKAGE).as_posix() for file in files if file}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports, from a file back to itself; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_itself_through_others():
    graph = {path.relative_to(PACKAGE).as_posix(): files_imported(path) for path in MODULES}
    assert sum(map(len, graph.values())) > 1000
    assert circle_in(graph) == []


def test_a_circle_of_files_is_seen_and_named():
    assert circle_in({"a.py": {"b.py"}, "b.py": {"c.py"}, "c.py": {"b.py"}}) in (
        ["b.py", "c.py", "b.py"],
        ["c.py", "b.py", "c.py"],
    )
    assert circle_in({"a.py": {"b.py", "c.py"}, "b.py": {"c.py"}, "c.py": set()}) == []
