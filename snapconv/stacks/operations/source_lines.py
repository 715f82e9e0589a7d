"""The text of a source file -> what its lines call; the text is parsed, and never run.

A line is used where it is in a function of the frame's name. A file is not used at all where
another of its frames contradicts that: it is then not the one that was recorded.
"""

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from snapconv.notes import Note
from snapconv.snapshot.stack_table import FrameTable
from snapconv.stacks.operations.source_names import Comprehension, Function, Names, names_of
from snapconv.stacks.operations.source_steps import Step, inner_steps, steps_of
from snapconv.stacks.paths import normal

_NAMELESS: dict[type[ast.AST], str] = {
    ast.Lambda: "<lambda>", ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>", ast.GeneratorExp: "<genexpr>",
}  # fmt: skip
INSTALLED = re.compile(r"/(?:site|dist)-packages/")
# What torch.compile calls the rest of a function after a break of the graph.
_RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_(?P<name>\w+)_at_\d+|<resume in (?P<older>\w+)>)$")
# Functions that no `def` in a file makes: CPython's own, and those of torch.compile.
_MADE = ("<", "torch_dynamo_")


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, class body or comprehension: the code of one frame. ``outer`` is what it stands in."""

    name: str
    first_line: int
    last_line: int
    node: ast.AST
    outer: "Scope | None"

    def has(self, line: int) -> bool:
        """Whether it has this line, be it in a scope within it."""
        return self.first_line <= line <= self.last_line


@dataclass(frozen=True, slots=True)
class Line:
    """What a line may allocate with, in the order of evaluation, and the lines of its statement.

    ``loop`` has the lines of the innermost loop of its function that it is in.
    """

    steps: tuple[Step, ...]
    first_line: int
    last_line: int
    loop: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The lines of source that are known, by frame.

    Files that were found, by their names in frames: ``mismatched`` are not what was recorded,
    ``unparsed`` are no Python that this interpreter can parse.
    """

    lines: Mapping[int, Line]
    mismatched: tuple[str, ...] = ()
    unparsed: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A parsed file: its scopes by name, outer ones first. ``module`` is its dotted name, where known.

    ``known`` and ``names`` keep what was found of evaluated scopes.
    """

    scopes: Mapping[str, Sequence[Scope]]
    module: str | None
    known: dict[int, Mapping[int, Line]] = field(default_factory=dict)
    names: dict[int, Names] = field(default_factory=dict)

    def contradicts(self, function: str, line: int) -> bool:
        """Whether the file has no function of this name at this line."""
        named = self.scopes.get(_plain(function), ())
        if not named:
            return not function.startswith(_MADE)
        return not any(scope.has(line) for scope in named)

    def line(self, function: str, line: int) -> Line | None:
        """What a line of a function calls; None where no function of this name has the line.

        None too where several such functions do other things there: two lambdas on a line.
        """
        around = [scope for scope in self.scopes.get(_plain(function), ()) if scope.has(line)]
        outers = {id(outer) for scope in around for outer in _outers(scope)}
        found: list[Line] = []
        for scope in around:
            part = self._lines(scope).get(line)
            # A function within the other has the line, unless the outer one has something there itself.
            if part and (id(scope) not in outers or any(step.line == line for step in part.steps)):
                found.append(replace(part, steps=_at_line(part.steps, line)))
        are_same = len({tuple(step.name for step in part.steps if step.most != 0) for part in found}) == 1
        return found[-1] if are_same else None

    def lines_of(
        self, frames: FrameTable, ids: Sequence[int], wanted: Collection[int]
    ) -> Mapping[int, Line] | None:
        """The lines of the wanted ones of a file's frames; None where any frame contradicts the file."""
        places = [(frame, frames.names[frame], int(frames.lines[frame])) for frame in ids]
        if any(self.contradicts(name, line) for _, name, line in places if line):
            return None
        lines = ((frame, self.line(name, line)) for frame, name, line in places if frame in wanted)
        return {frame: line for frame, line in lines if line is not None}

    def _lines(self, scope: Scope) -> Mapping[int, Line]:
        """The innermost statement of every line of a scope; none where something is nested too deeply."""
        found = self.known.get(id(scope))
        if found is None:
            found = {}
            try:
                stands_in = scope.outer if isinstance(scope.node, ast.Lambda | Comprehension) else None
                for part in _parts(scope.node, self._names(stands_in or scope)):
                    found |= dict.fromkeys(range(part.first_line, part.last_line + 1), part)
            except RecursionError:
                found = {}
            self.known[id(scope)] = found
        return found

    def _names(self, scope: Scope) -> Names:
        names = self.names.get(id(scope))
        if names is None:
            # Functions do not see the names of the class that they are in.
            outer = next(
                (outer for outer in _outers(scope) if not isinstance(outer.node, ast.ClassDef)), None
            )
            around = self._names(outer) if outer else None
            if around and isinstance(scope.node, ast.Lambda | Comprehension):
                names = around.inside(scope.node)
            else:
                names = names_of(scope.node, around, self.module)
            self.names[id(scope)] = names
        return names


def read_source(text: str, module: str | None = None) -> SourceFile | None:
    """Parse a file's text; None where it is no Python that this interpreter understands.

    ``module`` is its dotted name, where known: what relative imports start from.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    # MemoryError is what CPython's parser raises for brackets within brackets.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    scopes: dict[str, list[Scope]] = defaultdict(list)
    for scope in _scopes(tree):
        scopes[scope.name].append(scope)
    return SourceFile(dict(scopes), module)


def module_of(filename: str) -> str | None:
    """The dotted name of an installed module: of others it is not needed."""
    installed = INSTALLED.split(normal(filename))
    return installed[-1].removesuffix(".py").replace("/", ".") if len(installed) > 1 else None


def _plain(function: str) -> str:
    resumed = _RESUMED.match(function)
    return (resumed["name"] or resumed["older"]) if resumed else function


def _outers(scope: Scope) -> Iterator[Scope]:
    while scope.outer is not None:
        scope = scope.outer
        yield scope


def _scopes(tree: ast.Module) -> Iterator[Scope]:
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    left: list[tuple[ast.AST, Scope]] = [(tree, Scope("<module>", 1, last, tree, None))]
    yield left[0][1]
    while left:
        parent, around = left.pop()
        for node in ast.iter_child_nodes(parent):
            scope = _scope(node, around)
            if scope:
                yield scope
            left.append((node, scope or around))


def _scope(node: ast.AST, outer: Scope) -> Scope | None:
    if isinstance(node, Function | ast.ClassDef):
        # A call begins at the first decorator: what the garbage collector frees there has its line.
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return Scope(node.name, first, node.end_lineno or node.lineno, node, outer)
    if isinstance(node, ast.Lambda | Comprehension):
        return Scope(_NAMELESS[type(node)], node.lineno, node.end_lineno or node.lineno, node, outer)
    return None


def _parts(node: ast.AST, names: Names, loop: tuple[int, int] | None = None) -> Iterator[Line]:
    """The statements of a scope, compound ones without their bodies, each with its steps.

    ``names`` are those of the scope; of a lambda or a comprehension, of what it stands in.
    """
    if isinstance(node, ast.Lambda | Comprehension):
        lines = _lines(node)
        yield Line(tuple(inner_steps(node, names)), *lines, None if isinstance(node, ast.Lambda) else lines)
        return
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        loop = _lines(node)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if not isinstance(child, Function | ast.ClassDef):
                lines = _lines(child)
                steps = tuple(steps_of(child, names))
                yield Line(steps, *lines, lines if isinstance(child, ast.While) else loop)
                yield from _parts(child, names, loop)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _parts(child, names, loop)


def _lines(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _at_line(steps: tuple[Step, ...], line: int) -> tuple[Step, ...]:
    """The steps at the line as CPython counts now, or as it did; else all of the statement."""
    exact = tuple(step for step in steps if step.line == line)
    return exact or tuple(step for step in steps if step.other_line == line) or steps
