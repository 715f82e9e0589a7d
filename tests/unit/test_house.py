"""House rules that a linter does not know: sizes, docstrings, and words that must not get out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FILES = sorted((ROOT / "snapconv").rglob("*.py"))
SHIPPED_FOLDERS = ("snapconv", "tests", "scripts", "docs", "fixtures", ".ci")
SHIPPED_PATTERNS = ("[!.]*.*", ".gitignore", "LICENSE", *(f"{folder}/**/*" for folder in SHIPPED_FOLDERS))
SHIPPED_FILES = sorted(
    path
    for pattern in SHIPPED_PATTERNS
    for path in ROOT.glob(pattern)
    if path.is_file() and "__pycache__" not in path.parts
)
MAX_FUNCTION_LINES = 50

# Written in pieces, so that this file does not hold what it forbids.
MACHINE_PATH = rb"/(?:wo" + rb"rk|ro" + rb"ot)/"
BANNED = {
    "a path of the machine it was written on": re.compile(rb"(?<![\w.~-])" + MACHINE_PATH),
    "the number of a task": re.compile(rb"\biss" + rb"ue #\d", re.IGNORECASE),
    "the people behind it": re.compile(rb"\bC" + rb"EO\b"),
    "the host of a package registry": re.compile(rb"py" + rb"pi\.org|pythonhos" + rb"ted\.org"),
}
# In a pickle, the byte before a string is its length, which may look like a letter.
BANNED_IN_BINARY = {**BANNED, "a path of the machine it was written on": re.compile(MACHINE_PATH)}

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


def banned_in(content: bytes) -> dict[str, bytes]:
    """What must not be in a file, and the bytes that say it."""
    patterns = BANNED_IN_BINARY if b"\0" in content else BANNED
    found = {what: pattern.search(content) for what, pattern in patterns.items()}
    return {what: match.group() for what, match in found.items() if match}


@pytest.mark.parametrize("path", SHIPPED_FILES, ids=name_of)
def test_no_word_of_where_it_was_written(path: Path):
    assert banned_in(path.read_bytes()) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"see /wo" + b"rk/main/x.py",
        b'"/ro' + b'ot/.cache"',
        b"\0\x8cA/wo" + b"rk/main/fixtures/train.py",
        b"closes Iss" + b"ue #12",
        b"py" + b"pi.org",
    ],
)
def test_a_banned_word_is_found(content: bytes):
    assert len(banned_in(content)) == 1


@pytest.mark.parametrize(
    "content", [b"/home/me/wo" + b"rk/train.py", b"/workspace/train.py", b"pytorch#176288"]
)
def test_a_word_that_only_looks_banned_is_let_through(content: bytes):
    assert banned_in(content) == {}


def test_every_relative_link_of_the_readme_leads_to_a_file():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
