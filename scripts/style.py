"""Measures of how dense Python code is: what a stranger has to read at once.

Syntax nodes are what `ast.walk` visits, expression contexts with them, annotations without. Rows of
data are left out: the elements of a table of literals that a module builds once. They are read as a
table, one by one.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

# A table has so many rows at least.
LEAST_ROWS = 3

# Names that say neither type nor role: pronouns, participles, words for anything.
VAGUE_NAMES = frozenset(
    "found one ones place places mine made other others rest it them they those these this that"
    " what which who whose each known given held kept seen said told asked read_so_far left taken"
    " used lost gone done thing things whole own same such ours theirs its something anything"
    " nothing everything somewhere wanted needed named called drawn met meant put got had went"
    " came stands stuff here there where when how why many much more most few fewer less least"
    " last_one first_one another either neither both all_ any_ some none_ like_it".split()
)
_PREPOSITION = re.compile(
    "_?(of|by|with|without|from|to|into|in|on|at|for|after|before|beside|behind|under|over|above"
    "|below|between|within|through|during|until|since|beyond|per|among|against|upon)_"
)
# Begin like a preposition and are verbs or nouns of the field.
_NO_PREPOSITION = re.compile("to_(json|sqlite|dict|bytes|text|device|numpy|list|html)|in_use|per_")


@dataclass(frozen=True, slots=True)
class FunctionSize:
    """A function's name, line, syntax nodes and decisions, those of inner functions with it."""

    name: str
    line: int
    n_nodes: int
    n_decisions: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A line and what a reader stumbles over there."""

    line: int
    text: str


@cache
def _tree_without_annotations(text: str) -> ast.Module:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if hasattr(node, field):
                setattr(node, field, None)
    return tree


def _is_row(node: ast.expr) -> bool:
    """Return whether an element of a table is data: literals, names, calls with such arguments."""
    if isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.JoinedStr):
        return True
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(_is_row(element) for element in node.elts)
    if isinstance(node, ast.Dict):
        keys_are_rows = all(key is not None and _is_row(key) for key in node.keys)
        return keys_are_rows and all(_is_row(value) for value in node.values)
    if isinstance(node, ast.Call):
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_named = isinstance(node.func, ast.Name | ast.Attribute)
        return is_named and all(_is_row(argument) for argument in arguments)
    if isinstance(node, ast.BinOp):
        return _is_row(node.left) and _is_row(node.right)
    return isinstance(node, ast.UnaryOp) and _is_row(node.operand)


def _table_rows(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the rows of the tables of a module."""
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and value.args:
            value = value.args[0]
        elements: list[ast.expr] = []
        if isinstance(value, ast.Dict):
            elements = [*value.values, *(key for key in value.keys if key)]
        elif isinstance(value, ast.Tuple | ast.List | ast.Set):
            elements = value.elts
        if len(elements) >= LEAST_ROWS:
            yield from (element for element in elements if _is_row(element))


def _n_nodes(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def n_syntax_nodes(text: str, *, with_rows: bool = False) -> int:
    """Return the syntax nodes of a file, the rows of its tables left out unless asked for."""
    tree = _tree_without_annotations(text)
    n_in_rows = 0 if with_rows else sum(_n_nodes(row) for row in _table_rows(tree))
    return _n_nodes(tree) - n_in_rows


def statement_sizes(text: str) -> list[int]:
    """Return the syntax nodes of every statement, without those of the statements inside it."""
    tree = _tree_without_annotations(text)
    row_ids = {id(node) for row in _table_rows(tree) for node in ast.walk(row)}
    sizes = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            sizes.append(_own_nodes(statement, row_ids))
    return sizes


def large_statements(text: str, most: int) -> list[tuple[int, int]]:
    """Return the lines and the sizes of the statements that have more nodes than `most`."""
    tree = _tree_without_annotations(text)
    row_ids = {id(node) for row in _table_rows(tree) for node in ast.walk(row)}
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    sizes = [(statement.lineno, _own_nodes(statement, row_ids)) for statement in statements]
    return sorted((line, size) for line, size in sizes if size > most)


def _own_nodes(statement: ast.stmt, row_ids: set[int]) -> int:
    n_nodes = 0
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if id(node) in row_ids:
            continue
        n_nodes += 1
        waiting += (
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)
        )
    return n_nodes


def function_sizes(text: str) -> list[FunctionSize]:
    """Return the size of every function."""
    return [
        FunctionSize(node.name, node.lineno, _n_nodes(node), n_decisions(node))
        for node in ast.walk(_tree_without_annotations(text))
        if isinstance(node, Function)
    ]


def n_decisions(function: ast.AST) -> int:
    """Return how often a function decides: branches, loops, and conditions inside expressions."""
    n = 0
    for node in ast.walk(function):
        if isinstance(
            node, ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler
        ):
            n += 1
        elif isinstance(node, ast.BoolOp):
            n += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            n += len(node.ifs)
        elif isinstance(node, ast.match_case):
            n += 1
    return n


def code_lines(text: str) -> list[str]:
    """Return the lines of code: no blank ones, no comments, no docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        documented |= _docstring_lines(node)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    occupied: set[int] = set()
    for token in tokens:
        if token.type not in empty and token.type != tokenize.ENDMARKER:
            occupied |= set(range(token.start[0], token.end[0] + 1))
    lines = text.split("\n")
    return [lines[n - 1] for n in sorted(occupied - documented) if lines[n - 1].strip()]


def _docstring_lines(node: ast.AST) -> set[int]:
    if not isinstance(node, ast.Module | ast.ClassDef | Function) or not node.body:
        return set()
    first = node.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return set()
    if not isinstance(first.value.value, str):
        return set()
    return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))


def n_comprehensions_and_lambdas(text: str) -> tuple[int, int]:
    """Return how many comprehensions and how many lambdas a file has."""
    nodes = list(ast.walk(ast.parse(text)))
    n_comprehensions = sum(isinstance(node, Comprehension) for node in nodes)
    return n_comprehensions, sum(isinstance(node, ast.Lambda) for node in nodes)


def bound_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield each name that a file binds outside of comprehensions of one line, with its line.

    Keyword arguments are somebody's interface: those of functions count, where they are defined.
    """
    tree = ast.parse(text)
    short = set()
    for node in ast.walk(tree):
        if isinstance(node, Comprehension) and node.lineno == node.end_lineno:
            short |= {id(target) for part in node.generators for target in ast.walk(part.target)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in short:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, Function | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.ExceptHandler):
            yield node.lineno, node.name or "_"


def vague_names(text: str) -> list[Finding]:
    """Return the names that are pronouns, participles or words for anything."""
    return [
        Finding(line, name)
        for line, name in bound_names(text)
        if name.strip("_") in VAGUE_NAMES and name != "_"
    ]


def prepositional_names(text: str) -> list[Finding]:
    """Return the names that begin with a preposition."""
    return [
        Finding(line, name)
        for line, name in bound_names(text)
        if _PREPOSITION.match(name) and not _NO_PREPOSITION.match(name.strip("_"))
    ]


def shorthand(text: str) -> Iterator[Finding]:
    """Yield what does two things at once: nested comprehensions, stored lambdas, walrus in calls."""
    for node in ast.walk(ast.parse(text)):
        inner = [child for child in ast.walk(node) if child is not node]
        if isinstance(node, Comprehension):
            if any(isinstance(child, Comprehension) for child in inner):
                yield Finding(node.lineno, "a comprehension in a comprehension")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if isinstance(node.value, ast.Lambda):
                yield Finding(node.lineno, "a lambda that is stored")
        elif isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(argument, ast.NamedExpr) for argument in arguments):
                yield Finding(node.lineno, "an assignment inside a call")


def comments_that_begin_with_of(text: str) -> int:
    """Return how many comments begin as a continuation of what they stand at."""
    return len(re.findall(r"^\s*# Of ", text, re.MULTILINE))
