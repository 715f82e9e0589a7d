"""Reads of values that were not computed, and the way that a program goes by them.

It is the way that needs more memory. What is all but certain decides first: a loss is finite, and
two numbers that were computed differ. Then the source: no error is raised, and of two branches the
one with more calls is taken; a loop that waits for a value is entered once. A branch may go another
way than on a GPU all the same, and what is only printed does no harm, which cannot be seen from
here: so all reads are listed.
"""

import ast
import linecache
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any

from snapconv.guest.own_frames import program_frames
from snapconv.notes import Note
from snapconv.simulation.patches import Calls
from snapconv.simulation.places import shortened, shown, torch_folder, users_place

# Between a program's line and an operation; not all of torch, which decides by values itself.
_MODULES = (
    "_tensor",
    "_ops",
    "_compile",
    "overrides",
    "_dynamo/eval_frame",
    "utils/_python_dispatch",
)
_PLUMBING = tuple(f"/torch/{name}.py" for name in _MODULES)
# So often a loop goes on that only a value ends.
_PATIENCE = 1000
_JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
# What a comprehension keeps may need memory later: it counts as a call.
_KEPT = ast.Call(ast.Name("kept"), [], [])


@dataclass(frozen=True, slots=True)
class _Test:
    """A test in the source, and the statements that run where it holds and where it does not.

    Where one of the branches jumps, the statements behind the test belong to the other one.
    """

    node: Any
    then_branch: list[Any]
    else_branch: list[Any]


# First line and column of what runs, then its last: no columns before Python 3.11.
_Span = tuple[int, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class _Decision:
    """A test that a value decides.

    ``is_plain``: it holds where the value is True; otherwise, where the value is False.
    """

    filename: str
    test: _Test
    is_plain: bool

    @property
    def line(self) -> str:
        """The line of the statement."""
        return f"{shortened(self.filename)}:{self.test.node.lineno}"

    @property
    def is_torchs(self) -> bool:
        """Whether the statement is in a file of torch's own."""
        return self.filename.startswith(torch_folder())


def _holds(decision: _Decision, likelihood: float, n_asked: int) -> bool:
    """Decide a whole test that the program reaches for the n-th time."""
    test = decision.test
    else_fails = _fails(test.else_branch)
    if _fails(test.then_branch) != else_fails:
        return else_fails
    leaves = ast.Break | ast.Return
    then_leaves = _ends_by(test.then_branch, leaves)
    else_leaves = _ends_by(test.else_branch, leaves)
    if then_leaves != else_leaves and _has_waited(decision, n_asked):
        return then_leaves
    n_then = _calls(test.then_branch)
    n_else = _calls(test.else_branch)
    return likelihood > 0.5 if n_then == n_else else n_then > n_else


def _has_waited(decision: _Decision, n_asked: int) -> bool:
    """Say whether a loop that only a value ends has gone on for long enough."""
    node = decision.test.node
    if not isinstance(node, ast.While):
        # A loop of torch's own draws again what is out of bounds.
        return n_asked % 2 == 0 if decision.is_torchs else n_asked > _PATIENCE
    if any(isinstance(part, ast.BoolOp) for part in ast.walk(node.test)):  # each part asks
        return n_asked > 1
    return n_asked % 2 == 0


def _reading_frame() -> FrameType | None:
    """Find the innermost frame that is neither ours nor torch's way to an operation."""
    for frame in program_frames():
        if not frame.f_code.co_filename.endswith(_PLUMBING):
            return frame
    return None


def _decision() -> _Decision | None:
    """Find the test that the present read decides; a caller's if a function returns the value."""
    frame = _reading_frame()
    is_plain = True
    while frame is not None:
        span = _span(frame)
        filename = frame.f_code.co_filename
        tests, returned = _decisions(filename)
        asking = [test for test in tests if _asks(test.node, span)]
        if asking:
            test = asking[-1]  # the innermost
            return _Decision(filename, test, is_plain == _is_plain(test.node.test, span))
        value = next((value for value in returned if _contains(value, span)), None)
        if value is None:
            return None
        is_plain = is_plain == _is_plain(value, span)
        frame = frame.f_back
    return None


@lru_cache(maxsize=256)
def _decisions(filename: str) -> tuple[list[_Test], list[ast.expr]]:
    """List a file's tests, outer first, and the values that it returns."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return [], []
    tests: list[_Test] = []
    returned: list[ast.expr] = []
    for node in ast.walk(tree):
        tests += _tests(node)
        if isinstance(node, ast.Return) and node.value:
            returned.append(node.value)
    return tests, returned


def _tests(node: ast.AST) -> Iterator[_Test]:
    """List the tests of a node: its own, and those of the ``if`` statements in its blocks."""
    if isinstance(node, ast.IfExp):
        yield _Test(node, [node.body], [node.orelse])
    elif isinstance(node, ast.Assert):
        yield _Test(node, [], [ast.Raise()])
    elif isinstance(node, ast.While):
        yield _Test(node, node.body, [ast.Break()])
    elif isinstance(node, _COMPREHENSIONS):
        for generator in node.generators:
            for condition in generator.ifs:
                choice = ast.IfExp(condition, _KEPT, _KEPT)
                yield _Test(ast.copy_location(choice, node), [_KEPT], [])
    for _, block in ast.iter_fields(node):
        statements = block if isinstance(block, list) else []
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If):
                yield _if_statement(statement, statements[i + 1 :])


def _if_statement(node: ast.If, behind: list[ast.stmt]) -> _Test:
    if isinstance(node.body[-1], _JUMPS):
        return _Test(node, node.body, [*node.orelse, *behind])
    if node.orelse and isinstance(node.orelse[-1], _JUMPS):
        return _Test(node, [*node.body, *behind], node.orelse)
    return _Test(node, node.body, node.orelse)


def _span(frame: FrameType) -> _Span:
    """Return where in the source is what a frame evaluates."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None:
        remaining = islice(positions(), frame.f_lasti // 2, None)
        line, end_line, column, end_column = next(remaining, (None,) * 4)
        if line is not None:
            return line, column, end_line, end_column
    return frame.f_lineno, None, None, None


def _asks(node: Any, span: _Span) -> bool:
    """Say whether a statement or conditional expression tests what is evaluated."""
    # A jump has the position of all of it (Python 3.11). What it begins with ends before it.
    is_jump = span[:2] == (node.lineno, node.col_offset)
    if isinstance(node, ast.IfExp):
        is_jump &= span[2:] == (node.end_lineno, node.end_col_offset)
    return is_jump or _contains(node.test, span)


def _contains(node: Any, span: _Span) -> bool:
    line, column = span[:2]
    if column is None:
        return bool(node.lineno <= line <= node.end_lineno)
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno, node.end_col_offset)
    return bool(start <= (line, column) <= end)


def _is_plain(test: ast.expr, span: _Span) -> bool:
    """Say whether a value in a test makes it true by being true; by being false otherwise."""
    is_plain = True
    while True:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            is_plain = not is_plain
            test = test.operand
        elif isinstance(test, ast.BoolOp):
            test = next(
                (value for value in test.values if _contains(value, span)), test.values[0]
            )
        else:
            return is_plain


def _fails(branch: list[Any]) -> bool:
    if not branch or not isinstance(branch[-1], ast.Expr):
        return _ends_by(branch, ast.Raise)
    return _is_call(branch[-1].value, _EXITS)


def _ends_by(branch: list[Any], kinds: Any) -> bool:
    return bool(branch) and isinstance(branch[-1], kinds)


_EXITS = {"exit", "_exit", "quit", "abort"}
# They print or log what the others make: texts and numbers.
_PRINTS = {"print", "debug", "info", "warning", "warn", "error", "critical", "exception"}
_TEXTS = {*"item tolist str repr int float len round format join sum mean norm".split()}


def _calls(branch: list[Any]) -> int:
    """Count what may need memory: calls, and operators between values; not what only prints."""
    kinds = ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript
    nodes = [node for statement in branch for node in ast.walk(statement)]
    printed: set[ast.AST] = set()
    for node in nodes:
        if _is_call(node, _PRINTS):
            printed.update(ast.walk(node))
    n_calls = 0
    for node in nodes:
        is_text = not isinstance(node, ast.Call) or _is_call(node, _PRINTS | _TEXTS)
        if isinstance(node, kinds) and not (is_text and node in printed):
            n_calls += 1
    return n_calls


def _is_call(node: ast.AST, names: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    return getattr(function, "attr", getattr(function, "id", "")) in names


# A loop may read at as many places as it generates.
_MAX_PLACES = 1000

# What decides a branch or a shape for certain is listed first.
_ORDER = {"shape": 0, "bool()": 1}


class ValuesRead:
    """The reads so far of values that were not computed, by line, and what was decided by them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._n_asked: Counter[str] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._skipped: dict[str, None] = {}
        self._entered: dict[str, None] = {}
        self._doubted: dict[str, None] = {}

    def is_truth(self, dtype: Any, *, is_comparison: bool) -> bool:
        """Say whether a read is of a truth value: of one, or of a number that decides a branch."""
        name = self.name_of_call("")
        if is_comparison or name in ("bool", "is_nonzero"):
            return True
        # Zeros pass most of the checks inside of operations.
        return str(dtype) == "torch.bool" and name in ("item", "int", "float", "index")

    def decide(self, operation: str, likelihood: float) -> bool:
        """Decide a truth value that the program reads; ``likelihood`` is that it is True."""
        value = likelihood > 0.5
        decision = None if likelihood in (0, 1) else _decision()
        if decision is not None:
            self._n_asked[decision.line] += 1
            if not decision.is_plain:
                likelihood = 1 - likelihood
            is_true = _holds(decision, likelihood, self._n_asked[decision.line])
            self._note_ways(decision, is_true=is_true)
            value = is_true == decision.is_plain
        self.add(f"{self.name_of_call(operation)}() taken as {value}")
        return value

    def _note_ways(self, decision: _Decision, *, is_true: bool) -> None:
        """Note the branch that is entered without its value, and the lines that are skipped."""
        test = decision.test
        entered = test.then_branch if is_true else test.else_branch
        skipped = test.else_branch if is_true else test.then_branch
        if decision.is_torchs or _fails(skipped):
            return
        if _calls(entered) and not isinstance(test.node, ast.While):
            self._entered.setdefault(decision.line)
        if _calls(skipped):
            first = skipped[0].lineno
            last = skipped[-1].end_lineno
            lines = f"{first}-{last}" if last != first else str(first)
            self._skipped.setdefault(f"{shortened(decision.filename)}:{lines}")

    def add_numbers(self, operation: str) -> None:
        """Count a read of numbers, and note the branch of the program that they decide."""
        self.add(operation)
        decision = _decision()
        if decision is None or decision.is_torchs:
            return
        branches = (decision.test.then_branch, decision.test.else_branch)
        if not any(map(_fails, branches)) and any(map(_calls, branches)):
            self._doubted.setdefault(decision.line)

    def name_of_call(self, otherwise: str) -> str:
        """Name the call as Python does: ``bool``, and not ``__bool__``."""
        call = self._calls.current
        name = getattr(call[0], "__name__", otherwise) if call else otherwise
        return str(name).strip("_")

    def add(self, operation: str) -> None:
        """Count one read at the program's present line."""
        key = (users_place(), operation)
        if key in self._counts or len(self._counts) < _MAX_PLACES:
            self._counts[key] += 1

    def notes(self) -> tuple[Note, ...]:
        """List the reads of values that were not computed, those that decide a branch first."""
        if not self._counts:
            return ()
        reads = []
        for line, operation in sorted(self._counts, key=_rank):
            count = self._counts[line, operation]
            repeats = f", {count} times" if count > 1 else ""
            reads.append(f"{line} ({operation}{repeats})")
        message = (
            f"values that were not computed were read at {shown(reads)}; "
            "numbers read as 0, or as assumed"
        )
        if self._entered:
            message += (
                f"; the peak may be too high: entered were those at {shown(self._entered)}"
            )
        if self._skipped:
            message += f"; the peak may be too low: skipped were {shown(self._skipped)}"
        if self._doubted:
            message += f"; the peak may be too low: such a number decides at {shown(self._doubted)}"
        return (Note("values-not-computed", message),)


def _rank(read: tuple[str, str]) -> int:
    """Return how early a read is listed."""
    _, operation = read
    return _ORDER.get(operation.partition(" ")[0], 2)
