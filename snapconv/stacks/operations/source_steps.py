"""One statement of a source file -> the operations in it that may allocate, in the order of evaluation."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from snapconv.stacks.operations.source_names import Names
from snapconv.torch_knowledge.source_catalog import (
    ANY,
    NONE,
    ONE,
    PERHAPS,
    TAKES_SIZES,
    Bounds,
    function_bounds,
    method_bounds,
    operator_bounds,
)

_SELF = ("self", "cls")
_CALLS_OF_BUILTINS: dict[str, tuple[str, Bounds]] = {"sum": ("add", ANY), "abs": ("abs", ONE)}


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a line, and how many allocations it makes at ``least`` and at ``most`` (None: any).

    ``line`` is the one that a frame has while it runs, on CPython from 3.11 on; ``other_line`` the one that
    older ones have for a method: 3.10 where it has keywords, those before always. ``is_op``: called through
    torch.ops, which has a frame of its own. ``arms``: the arms of conditional expressions that it is in, each
    as the place of the expression and the arm's number.
    """

    name: str
    line: int
    other_line: int
    least: int
    most: int | None
    is_op: bool = False
    arms: tuple[tuple[tuple[int, int], int], ...] = ()


def steps_of(node: ast.AST, names: Names) -> Iterator[Step]:
    """The operations of a statement without its body, or of an expression, as they are evaluated.

    Statements that belong to it are left out; so is what runs in a frame of its own.
    """
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from steps_of(value, names)
            for target in targets:
                yield from _stored(target, names)
        case ast.AugAssign(target=target, value=value):
            yield from steps_of(value, names)
            yield from _in_place(node, target, value, names)
        case ast.AnnAssign(value=value):
            if value is not None:
                yield from steps_of(value, names)
        case ast.For(iter=value) | ast.AsyncFor(iter=value):
            yield from steps_of(value, names)
        case _:
            yield from _expression(node, names)


def _expression(node: ast.AST, names: Names) -> Iterator[Step]:
    match node:
        case ast.stmt() if not isinstance(node, ast.Expr | ast.Return | ast.Assert | ast.Raise | ast.Delete):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr | ast.withitem):
                    yield from _expression(child, names)
        case ast.Lambda():
            return
        case ast.GeneratorExp(generators=generators):
            # Only what it runs over is evaluated where it stands.
            yield from _expression(generators[0].iter, names)
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            # In line since CPython 3.12, before that in a frame of its own; as often as its loop runs.
            yield from _expression(node.generators[0].iter, names)
            for step in inner_steps(node, names):
                yield replace(step, least=0, most=None if step.most else step.most)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from _expression(test, names)
            for number, arm in enumerate((body, orelse)):
                here = (node.lineno, node.col_offset), number
                for step in _perhaps([arm], names):
                    yield replace(step, arms=(here, *step.arms))
        case ast.BoolOp(values=values):
            yield from _expression(values[0], names)
            yield from _perhaps(values[1:], names)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            yield from _operator(node, names)
        case ast.Call():
            yield from _call(node, names)
        case ast.Subscript():
            yield from _subscript(node, names)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _expression(child, names)


def inner_steps(node: ast.AST, names: Names) -> Iterator[Step]:
    """The operations inside of a comprehension or a lambda, which may have a frame of its own.

    ``names`` are those of the scope that it stands in.
    """
    names = names.inside(node)
    match node:
        case ast.Lambda(body=body):
            yield from _expression(body, names)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            for number, generator in enumerate(node.generators):
                if number:
                    yield from _expression(generator.iter, names)
                for condition in generator.ifs:
                    yield from _expression(condition, names)
            for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                yield from _expression(part, names)


def _perhaps(nodes: list[ast.expr], names: Names) -> Iterator[Step]:
    for node in nodes:
        for step in _expression(node, names):
            yield replace(step, least=0)


def _at(node: ast.expr | ast.stmt, name: str, bounds: Bounds, *, is_op: bool = False) -> Step:
    """A step at the line that CPython gives to the instruction: of a method, that of its name."""
    line = node.lineno
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        line = node.func.end_lineno or line
    return Step(name, line, node.lineno, *bounds, is_op=is_op)


def _operator(node: ast.BinOp | ast.UnaryOp | ast.Compare, names: Names) -> Iterator[Step]:
    for child in ast.iter_child_nodes(node):
        yield from _expression(child, names)
    if names.is_number(node):
        return
    for op in node.ops if isinstance(node, ast.Compare) else (node.op,):
        number_at_left = isinstance(node, ast.BinOp) and names.is_number(node.left)
        known = operator_bounds(op, number_at_left=number_at_left)
        if known:
            yield _at(node, *known)


def _in_place(node: ast.AugAssign, target: ast.expr, value: ast.expr, names: Names) -> Iterator[Step]:
    """``total += loss`` allocates where the total is a number yet; a tensor takes the sum itself."""
    if not (names.is_number(target) and names.is_number(value)):
        known = operator_bounds(node.op)
        if known:
            yield _at(node, known[0], PERHAPS)


def _call(node: ast.Call, names: Names) -> Iterator[Step]:
    called = _called(node, names)
    yield from _expression(node.func, names)
    takes_sizes = isinstance(node.func, ast.Attribute) and node.func.attr in TAKES_SIZES
    for argument in (*node.args, *node.keywords):
        yield from _index(argument, names) if takes_sizes else _expression(argument, names)
    if called is not None:
        name, bounds = called
        is_op = (names.dotted(node.func) or "").startswith("torch.ops.")
        yield _at(node, name, bounds, is_op=is_op)


def _called(node: ast.Call, names: Names) -> tuple[str, Bounds] | None:
    n_arguments = len(node.args) + len(node.keywords)
    dotted = names.dotted(node.func)
    if dotted is not None:
        has_device = any(keyword.arg == "device" for keyword in node.keywords)
        return function_bounds(dotted, n_arguments, has_device=has_device)
    match node.func:
        case ast.Name(id=name):
            return None if names.is_number(node) else _CALLS_OF_BUILTINS.get(name)
        # `self.norm(x)` is a module, or a method that the user wrote: it has a frame.
        case ast.Attribute(value=ast.Name(id=owner)) if owner in _SELF or names.is_number(node.func.value):
            return None
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")) | ast.Constant()):
            return None
        case ast.Attribute(attr=name) if not names.is_number_method(name):
            bounds = method_bounds(name, has_arguments=n_arguments > 0)
            return (name, bounds) if bounds else None
    return None


def _index(node: ast.AST, names: Names) -> Iterator[Step]:
    """The operations among sizes and indices: calls and lookups, no arithmetic."""
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Tuple | ast.Slice | ast.List | ast.keyword):
        for child in ast.iter_child_nodes(node):
            yield from _index(child, names)
    else:
        yield from _expression(node, names)


def _subscript(node: ast.Subscript, names: Names) -> Iterator[Step]:
    yield from _expression(node.value, names)
    yield from _index(node.slice, names)
    if not names.is_number(node.value) and not isinstance(node.value, ast.Tuple):
        yield _at(node, "getitem", _lookup_bounds(node.slice, names))


def _lookup_bounds(index: ast.expr, names: Names) -> Bounds:
    """Numbers and slices make a view; a tensor as index, and only it, makes a copy."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if all(isinstance(part, ast.Slice) or names.is_number(part) for part in parts):
        return NONE
    return ONE if any(isinstance(part, ast.Compare) for part in parts) else PERHAPS


def _stored(target: ast.expr, names: Names) -> Iterator[Step]:
    """What an assignment does: into a tensor it may need memory to work in."""
    match target:
        case ast.Subscript(value=value, slice=index):
            yield from _expression(value, names)
            yield from _index(index, names)
            bounds = _lookup_bounds(index, names)
            if not names.is_number(value):
                yield _at(target, "setitem", (0, bounds[1]))
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for inner in targets:
                yield from _stored(inner, names)
