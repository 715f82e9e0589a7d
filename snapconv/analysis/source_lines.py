"""The text of a source file -> what its lines call; the text is parsed, and never run.

A line is believed where it lies in a function of the frame's name. A file is not believed at all where
another of its frames says otherwise: it is then not the one that was recorded.
"""

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from snapconv.analysis.paths import normal
from snapconv.analysis.source_steps import Names, Step, inner_steps, steps_of
from snapconv.notes import Note
from snapconv.snapshot.stacks import FrameTable

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NAMELESS: dict[type[ast.AST], str] = {
    ast.Lambda: "<lambda>", ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>", ast.GeneratorExp: "<genexpr>",
}  # fmt: skip
INSTALLED = re.compile(r"/(?:site|dist)-packages/")
# What torch.compile calls the rest of a function after a break of the graph.
_RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_(?P<name>\w+)_at_\d+|<resume in (?P<older>\w+)>)$")


@dataclass(frozen=True, slots=True)
class Scope:
    """A function, class body or comprehension: the code of one frame."""

    name: str
    first_line: int
    last_line: int
    node: ast.AST


@dataclass(frozen=True, slots=True)
class Line:
    """What a line may allocate with, in the order of evaluation, and the lines of its statement.

    ``in_loop``: within its function.
    """

    steps: tuple[Step, ...]
    first_line: int
    last_line: int
    in_loop: bool = False


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The lines of source that are known, by frame, and the files that are not what was recorded."""

    lines: Mapping[int, Line]
    doubted: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A parsed file: its scopes by name, outer ones first, and what it imports, by the name it has there.

    ``known`` keeps the lines of scopes that were asked for.
    """

    scopes: Mapping[str, Sequence[Scope]]
    imports: Mapping[str, str]
    known: dict[int, Mapping[int, Line]] = field(default_factory=dict)

    def contradicts(self, function: str, line: int) -> bool:
        """Whether the file has functions of this name, and none of them at this line."""
        named = self.scopes.get(_plain(function), ())
        return bool(named) and not any(scope.first_line <= line <= scope.last_line for scope in named)

    def line(self, function: str, line: int) -> Line | None:
        """What a line of a function calls; None where no function of this name has the line."""
        named = self.scopes.get(_plain(function), ())
        around = [scope for scope in named if scope.first_line <= line <= scope.last_line]
        if not around:
            return None
        node = around[-1].node
        if id(node) not in self.known:
            self.known[id(node)] = _lines_of(node, self.imports)
        part = self.known[id(node)].get(line)
        return replace(part, steps=_at_line(part.steps, line)) if part else None


def read_source(text: str, module: str | None = None) -> SourceFile | None:
    """Parse a file's text; None where it is no Python that this interpreter understands.

    ``module`` is its dotted name, where known: what relative imports start from.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        scopes: dict[str, list[Scope]] = defaultdict(list)
        for scope in _scopes(tree):
            scopes[scope.name].append(scope)
        return SourceFile(dict(scopes), dict(_imports(tree, module)))
    # MemoryError is what CPython's parser says of brackets within brackets.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_lines(frames: FrameTable, wanted: Collection[int], texts: Mapping[str, str]) -> SourceLines:
    """The lines of frames, as far as their files are there and are those that ran.

    ``texts`` are those of files, by the name that frames have for them.
    """
    of_file: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, filename, line in zip(frames.names, frames.filenames, frames.lines.tolist(), strict=True):
        if filename in texts and line:
            of_file[filename].append((name, line))
    believed: dict[str, SourceFile] = {}
    for filename, text in texts.items():
        source = read_source(text, _module_of(filename))
        if source and not any(source.contradicts(*place) for place in of_file[filename]):
            believed[filename] = source
    found: dict[int, Line] = {}
    for frame in wanted:
        source = believed.get(frames.filenames[frame])
        line = source.line(frames.names[frame], int(frames.lines[frame])) if source else None
        if line is not None:
            found[frame] = line
    return SourceLines(found, tuple(sorted(set(texts) - set(believed))))


def _module_of(filename: str) -> str | None:
    """The dotted name of an installed module: of others it is not needed."""
    installed = INSTALLED.split(normal(filename))
    return installed[-1].removesuffix(".py").replace("/", ".") if len(installed) > 1 else None


def _plain(function: str) -> str:
    resumed = _RESUMED.match(function)
    return (resumed["name"] or resumed["older"]) if resumed else function


def _scopes(tree: ast.Module) -> Iterator[Scope]:
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    yield Scope("<module>", 1, last, tree)
    for node in ast.walk(tree):
        if isinstance(node, _Function | ast.ClassDef):
            yield Scope(node.name, node.lineno, node.end_lineno or node.lineno, node)
        elif type(node) in _NAMELESS and isinstance(node, ast.expr):
            yield Scope(_NAMELESS[type(node)], node.lineno, node.end_lineno or node.lineno, node)


def _imports(tree: ast.Module, module: str | None) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            home = _home(node, module)
            for alias in node.names:
                yield alias.asname or alias.name, f"{home}.{alias.name}"


def _home(node: ast.ImportFrom, module: str | None) -> str:
    """The module that names are imported from; of the project's own the name does not matter."""
    if not node.level:
        return node.module or ""
    package = (module or "").split(".")[: -node.level]
    return ".".join([*(package or [""]), *filter(None, [node.module])])


def _lines_of(node: ast.AST, imports: Mapping[str, str]) -> Mapping[int, Line]:
    """The innermost statement of every line of a scope; none where expressions are nested too deeply."""
    found: dict[int, Line] = {}
    try:
        for part in _parts(node, Names(imports, _numbers(node, imports))):
            found |= dict.fromkeys(range(part.first_line, part.last_line + 1), part)
    except RecursionError:
        return {}
    return found


def _parts(node: ast.AST, names: Names, *, in_loop: bool = False) -> Iterator[Line]:
    """The statements of a scope, compound ones without their bodies, each with its steps."""
    in_loop = in_loop or isinstance(node, ast.For | ast.AsyncFor | ast.While)
    if type(node) in _NAMELESS and isinstance(node, ast.expr):
        is_loop = not isinstance(node, ast.Lambda)
        yield Line(tuple(inner_steps(node, names)), node.lineno, node.end_lineno or node.lineno, is_loop)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if not isinstance(child, _Function | ast.ClassDef):
                steps = tuple(steps_of(child, names))
                is_while = isinstance(child, ast.While)
                yield Line(steps, child.lineno, child.end_lineno or child.lineno, in_loop or is_while)
                yield from _parts(child, names, in_loop=in_loop)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _parts(child, names, in_loop=in_loop)


def _at_line(steps: tuple[Step, ...], line: int) -> tuple[Step, ...]:
    """The steps at the line as CPython counts now, or as it did; else all of the statement."""
    exact = tuple(step for step in steps if step.line == line)
    return exact or tuple(step for step in steps if step.other_line == line) or steps


def _numbers(node: ast.AST, imports: Mapping[str, str]) -> frozenset[str]:
    """The names of a function that only ever hold plain numbers: sizes, counts, texts."""
    numbers: set[str] = set()
    others: set[str] = set()
    if isinstance(node, _Function):
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            is_plain = isinstance(argument.annotation, ast.Name) and argument.annotation.id in _PLAIN
            (numbers if is_plain else others).add(argument.arg)
    for child in ast.walk(node):
        for target, value in _bindings(child):
            known = Names(imports, frozenset(numbers - others))
            _bind(target, value, known, numbers, others)
    return frozenset(numbers - others)


_PLAIN = ("int", "float", "bool", "str")


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.For(target=target, iter=over) | ast.comprehension(target=target, iter=over):
            yield target, over


def _bind(target: ast.expr, value: ast.expr, known: Names, numbers: set[str], others: set[str]) -> None:
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for inner, part in zip(targets, values, strict=True):
                _bind(inner, part, known, numbers, others)
        case ast.Tuple(elts=[ast.Name(id=counter), *rest]), ast.Call(func=ast.Name(id="enumerate")):
            numbers.add(counter)
            others.update(name.id for node in rest for name in ast.walk(node) if isinstance(name, ast.Name))
        case _:
            is_range = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "range"
            names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
            if not isinstance(target, ast.Name | ast.Tuple):
                return
            (numbers if is_range or known.is_number(value) else others).update(names)
