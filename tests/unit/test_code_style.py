"""What a linter does not check: the length of functions, docstrings of public names, links of the README."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FILES = sorted((ROOT / "snapconv").rglob("*.py"))
MAX_FUNCTION_LINES = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def public_definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """Public classes and functions of a module, with the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if not any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node)


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
def test_a_function_has_under_50_lines(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lengths = {node.name: node.end_lineno - node.lineno + 1 for node in functions_of(tree)}
    assert {name: n for name, n in lengths.items() if n >= MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
def test_every_public_name_has_a_docstring(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.name for node in public_definitions(tree) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", [path for path in PACKAGE_FILES if path.stat().st_size], ids=name_of)
def test_every_module_has_a_docstring(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


# What changes while it is built or used; the recorder and the simulation are guests, and not meant here.
GUESTS = ("recorder", "simulation")
NOT_FROZEN = {
    "snapconv/allocator/allocator_trace.py:Ledger": "dataclass(slots=True, eq=False)",
    "snapconv/allocator/blocks.py:Block": "dataclass(slots=True, eq=False)",
    "snapconv/naming/weights/param_tree.py:Module": "dataclass(slots=True)",
    "snapconv/snapshot/event_table.py:TraceReader": "dataclass(slots=True)",
    "snapconv/snapshot/readers/pickle_scan.py:_Walk": "dataclass(slots=True)",
}


def test_data_is_frozen_and_has_slots():
    found = {}
    for path in PACKAGE_FILES:
        text = path.read_text(encoding="utf-8")
        if "@dataclass" in text and path.relative_to(ROOT / "snapconv").parts[0] not in GUESTS:
            classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
            found |= {
                f"{name_of(path)}:{node.name}": ast.unparse(decorator)
                for node in classes
                for decorator in node.decorator_list
                if ast.unparse(decorator).startswith("dataclass")
            }
    assert len(found) > 100
    usual = "dataclass(frozen=True, slots=True)"
    assert {place: decorator for place, decorator in found.items() if decorator != usual} == NOT_FROZEN


def test_every_relative_link_of_the_readme_leads_to_a_file():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
