"""What the names in a scope of a source file stand for: things imported, plain numbers, or anything else.

A scope is a module, function, class body, lambda or comprehension; what hides what is as in Python.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_NUMBER_CALLS = frozenset("len int float bool round id ord hash isinstance".split())
_NUMBER_METHODS = frozenset("dim element_size item ndimension nelement numel size stride".split())
_NUMBER_ATTRIBUTES = frozenset("shape ndim itemsize".split())
_NUMBER_TYPES = ("int", "float", "bool", "str")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a scope: ``imports`` in full, ``numbers`` that are no tensor, and all that are ``bound``.

    ``lists`` are numbers as a whole, as ``[]`` is: nothing is known of what is in them. Names of ``outer``,
    the scope around it, count as far as they are not bound here; its numbers only if this scope is part of
    an expression of it (``sees_numbers``), since a function may run at any time.
    """

    imports: Mapping[str, str]
    bound: AbstractSet[str]
    outer: "Names | None"
    numbers: AbstractSet[str] = frozenset()
    lists: AbstractSet[str] = frozenset()
    sees_numbers: bool = False

    def dotted(self, node: ast.expr) -> str | None:
        """The full name of something imported: ``torch.nn.functional.gelu``; None for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        origin = self._origin(node.id) if isinstance(node, ast.Name) else None
        return None if origin is None else ".".join([origin, *reversed(parts)])

    def _origin(self, name: str) -> str | None:
        names: Names | None = self
        while names is not None:
            # Of `try: from … import f` with `f = None` after it, f is what was imported.
            if name in names.imports:
                return names.imports[name]
            names = None if name in names.bound else names.outer
        return None

    def _home(self, name: str) -> "Names":
        """The scope whose numbers describe a name."""
        names = self
        while names.sees_numbers and names.outer is not None and name not in names.bound:
            names = names.outer
        return names

    def is_number(self, node: ast.AST) -> bool:
        """Whether an expression is a plain number or text as far as its own text shows."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Dict() | ast.Lambda():
                return True
            case ast.Name(id=name):
                return name in self._home(name).numbers
            case ast.Attribute(attr=attr):
                return attr in _NUMBER_ATTRIBUTES
            case ast.UnaryOp(op=ast.Not()):
                return True
            case ast.UnaryOp(operand=inner) | ast.Starred(value=inner):
                return self.is_number(inner)
            case ast.Subscript(value=inner):
                return self.has_numbers(inner)
            case ast.BinOp(left=left, right=right):
                # The right one first: a long sum is deep at its left, and evaluated at every depth.
                return self.is_number(right) and self.is_number(left)
            case ast.BoolOp(values=values) | ast.Tuple(elts=values):
                return all(map(self.is_number, values))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_number(body) and self.is_number(orelse)
            case ast.Compare(left=left, ops=ops, comparators=others):
                plain = all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops)
                return plain or all(map(self.is_number, (left, *others)))
            case ast.Call(func=func, args=args):
                return self._is_number_call(func, args)
        return False

    def has_numbers(self, node: ast.AST) -> bool:
        """Whether what is in something, such as a shape, are plain numbers or texts."""
        match node:
            case ast.Name(id=name):
                return self.is_number(node) and name not in self._home(name).lists
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
                return bool(parts) and all(map(self.is_number, parts))
            case ast.BinOp(left=left, right=right):
                return self.has_numbers(right) and self.has_numbers(left)
            case ast.Call(func=ast.Name(id="range")):
                return True
        return self.is_number(node)

    def _is_number_call(self, func: ast.expr, args: list[ast.expr]) -> bool:
        if isinstance(func, ast.Name):
            plain = func.id in ("min", "max", "sum", "abs") and all(map(self.is_number, args)) and bool(args)
            return plain or func.id in _NUMBER_CALLS
        if isinstance(func, ast.Attribute):
            return self.is_number_method(func.attr) or (self.dotted(func) or "").startswith("math.")
        return False

    @staticmethod
    def is_number_method(name: str) -> bool:
        """Whether a tensor's method of this name gives a number, or several."""
        return name in _NUMBER_METHODS

    def inside(self, node: ast.AST) -> "Names":
        """The names in a lambda or a comprehension that stands in this scope."""
        match node:
            case ast.Lambda(args=arguments):
                bound = frozenset(argument.arg for argument in _parameters(arguments))
                return Names({}, bound, self, sees_numbers=True)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets = (generator.target for generator in node.generators)
                bound = frozenset(name for target in targets for name in _names_in(target))
                kinds = _Kinds(Names({}, bound, self, sees_numbers=True))
                for generator in node.generators:
                    kinds.loop(generator.target, generator.iter)
                return kinds.names
        return self


def names_of(node: ast.AST, outer: Names | None, module: str | None) -> Names:
    """The names in a module, class or function; ``outer`` are those of what it stands in.

    ``module`` is the dotted name of the file, where known: what relative imports start from.
    """
    own = list(_own_nodes(node))
    imports = dict(_imports(own, module))
    elsewhere = {name for part in own if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names}
    parameters = list(_parameters(node.args)) if isinstance(node, Function) else []
    bound = {argument.arg for argument in parameters} | set(_bound(own)) - elsewhere
    kinds = _Kinds(Names(imports, bound, outer))
    for argument in parameters:
        kind = argument.annotation
        kinds.add([argument.arg], is_number=isinstance(kind, ast.Name) and kind.id in _NUMBER_TYPES)
    for part in own:
        if isinstance(part, ast.For):
            kinds.loop(part.target, part.iter)
        for target, value in _bindings(part):
            kinds.bind(target, value)
    return kinds.names


class _Kinds:
    """Sorts the names of one scope: a name that once had another value is no number any more."""

    def __init__(self, names: Names) -> None:
        self._numbers: set[str] = set()
        self._lists: set[str] = set()
        self._others: set[str] = set()
        self.names = replace(names, numbers=self._numbers, lists=self._lists)

    def add(self, names: Iterable[str], *, is_number: bool) -> None:
        """Record the values of names."""
        for name in names:
            if is_number and name not in self._others:
                self._numbers.add(name)
            elif not is_number:
                self._others.add(name)
                self._numbers.discard(name)

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Note what an assignment puts into the target."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for inner, part in zip(targets, values, strict=True):
                    self.bind(inner, part)
            case ast.Name(id=name), _:
                if self.names.is_number(value) and not self.names.has_numbers(value):
                    self._lists.add(name)
                self.add([name], is_number=self.names.is_number(value))
            case ast.Tuple(), _:
                self.add(_names_in(target), is_number=self.names.has_numbers(value))

    def loop(self, target: ast.expr, over: ast.expr) -> None:
        """Note what a loop puts into the target."""
        match target, over:
            case ast.Tuple(elts=[ast.Name(id=counter), *rest]), ast.Call(func=ast.Name(id="enumerate")):
                self.add([counter], is_number=True)
                self.add((name for node in rest for name in _names_in(node)), is_number=False)
            case ast.Name() | ast.Tuple(), _:
                self.add(_names_in(target), is_number=self.names.has_numbers(over))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a scope itself, in the order of the text: without what is in scopes within it.

    Of a comprehension only its targets have a scope of their own: `:=` in it binds a name out here.
    """
    left: list[ast.AST] = list(reversed(getattr(scope, "body", [])))
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.comprehension):
            left += [*reversed(node.ifs), node.iter]
        elif not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            left += reversed(list(ast.iter_child_nodes(node)))


def _parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from filter(None, (arguments.vararg, arguments.kwarg))


def _names_in(target: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value


def _imports(nodes: Iterable[ast.AST], module: str | None) -> Iterator[tuple[str, str]]:
    for node in nodes:
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
