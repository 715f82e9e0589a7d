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
from types import CodeType, FrameType, FunctionType
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
_EXITS = {"exit", "_exit", "quit", "abort"}
# They print or log what the others make: texts and numbers.
_PRINTS = {"print", "debug", "info", "warning", "warn", "error", "critical", "exception"}
_TEXTS = {*"item tolist str repr int float len round format join sum mean norm".split()}


@dataclass(frozen=True, slots=True, eq=False)
class _Test:
    """A value that decides in the source, and what runs where the test holds or does not.

    ``is_plain``: the test holds where the value is True; otherwise, where it is False. Where one
    of the branches jumps, the statements behind the test belong to the other one. A value that is
    returned has no branches: the caller decides by it.
    """

    filename: str
    node: Any
    value: ast.expr
    is_plain: bool
    then_branch: list[Any]
    else_branch: list[Any]

    @property
    def line(self) -> str:
        """The line of the statement."""
        return f"{shortened(self.filename)}:{self.node.lineno}"

    @property
    def is_torchs(self) -> bool:
        """Whether the statement is in a file of torch's own."""
        return self.filename.startswith(torch_folder())


# Lines and columns of the first and the last character. Python 3.10 has no columns: they are 0.
_Span = tuple[tuple[int, int], tuple[int, int]]
_HAS_COLUMNS = hasattr(CodeType, "co_positions")


def _holds(test: _Test, likelihood: float, n_asked: int) -> bool:
    """Decide a whole test that the program reaches for the n-th time."""
    else_fails = _fails(test.else_branch)
    if _fails(test.then_branch) != else_fails:
        return else_fails
    leaves = ast.Break | ast.Return
    then_leaves = _ends_by(test.then_branch, leaves)
    if then_leaves != _ends_by(test.else_branch, leaves):
        # A loop of torch's own draws again what is out of bounds.
        is_short = isinstance(test.node, ast.While) or test.is_torchs
        if n_asked % 2 == 0 if is_short else n_asked > _PATIENCE:
            return then_leaves
    n_then = _calls(test.then_branch)
    n_else = _calls(test.else_branch)
    return likelihood > 0.5 if n_then == n_else else n_then > n_else


def _reading_frame() -> FrameType | None:
    """Find the innermost frame that is neither ours nor torch's way to an operation."""
    for frame in program_frames():
        if not frame.f_code.co_filename.endswith(_PLUMBING):
            return frame
    return None


def _decision() -> tuple[_Test, bool] | None:
    """Find the test that the present read decides, and whether it holds where the value is True.

    It is a caller's if a function returns the value.
    """
    frame = _reading_frame()
    is_plain = True
    while frame is not None:
        span = _span_of_frame(frame)
        asking = [test for test in _tests(frame.f_code.co_filename) if _asks(test, span)]
        if not asking:
            return None
        test = asking[-1]  # the innermost
        is_plain = is_plain == test.is_plain
        if not isinstance(test.node, ast.Return):
            return test, is_plain
        frame = frame.f_back
    return None


@lru_cache(maxsize=256)
def _tests(filename: str) -> list[_Test]:
    """List the values that decide in a file, outer tests first."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return []
    tests = []
    for node in ast.walk(tree):
        for tested, condition, then_branch, else_branch in _conditions(node):
            for value, is_plain in _values(condition):
                test = _Test(filename, tested, value, is_plain, then_branch, else_branch)
                tests.append(test)
    return tests


_Condition = tuple[Any, ast.expr, list[Any], list[Any]]


def _conditions(node: ast.AST) -> Iterator[_Condition]:
    """List the conditions of a node: its own, and those of the ``if`` statements in its blocks."""
    if isinstance(node, ast.IfExp):
        yield node, node.test, [node.body], [node.orelse]
    elif isinstance(node, ast.Assert):
        yield node, node.test, [], [ast.Raise()]
    elif isinstance(node, ast.While):
        yield node, node.test, node.body, [ast.Break()]
    elif isinstance(node, ast.Return) and node.value:
        yield node, node.value, [], []
    elif isinstance(node, _COMPREHENSIONS):
        for generator in node.generators:
            for condition in generator.ifs:
                yield node, condition, [_KEPT], []
    for _, block in ast.iter_fields(node):
        statements = block if isinstance(block, list) else []
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If):
                yield _if_condition(statement, statements[i + 1 :])


def _if_condition(statement: ast.If, behind: list[Any]) -> _Condition:
    then_branch: list[Any] = statement.body
    else_branch: list[Any] = statement.orelse
    if _ends_by(then_branch, _JUMPS):
        else_branch = else_branch + behind
    elif _ends_by(else_branch, _JUMPS):
        then_branch = then_branch + behind
    return statement, statement.test, then_branch, else_branch


def _values(
    condition: ast.expr, *, is_plain: bool = True
) -> Iterator[tuple[ast.expr, bool]]:
    """List the values that decide a condition, each with whether it does so by being true."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        yield from _values(condition.operand, is_plain=not is_plain)
    elif isinstance(condition, ast.BoolOp):
        for value in condition.values:
            yield from _values(value, is_plain=is_plain)
    else:
        yield condition, is_plain


def _span_of_frame(frame: FrameType) -> _Span:
    """Return where in the source is what a frame evaluates."""
    positions: Any = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return (frame.f_lineno, 0), (frame.f_lineno, 0)
    remaining = islice(positions(), frame.f_lasti // 2, None)
    line, end_line, column, end_column = next(remaining)
    return (line or 0, column or 0), (end_line or 0, end_column or 0)


def _span(node: Any) -> _Span:
    if not _HAS_COLUMNS:
        return (node.lineno, 0), (node.end_lineno, 0)
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _asks(test: _Test, span: _Span) -> bool:
    """Say whether a test's value is what is evaluated."""
    first, last = _span(test.value)
    # A jump has the position of all of it (Python 3.11).
    return first <= span[0] <= last or span == _span(test.node)


def _fails(branch: list[Any]) -> bool:
    if not branch or not isinstance(branch[-1], ast.Expr):
        return _ends_by(branch, ast.Raise)
    return _is_call(branch[-1].value, _EXITS)


def _ends_by(branch: list[Any], kinds: Any) -> bool:
    return bool(branch) and isinstance(branch[-1], kinds)


def _calls(branch: list[Any]) -> int:
    """Count what may need memory: calls, and operators between values; not what only prints."""
    n_calls = 0
    for statement in branch:
        is_text = isinstance(statement, ast.Expr) and _is_call(statement.value, _PRINTS)
        kinds = (
            ast.Call if is_text else ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript
        )
        names = _PRINTS | _TEXTS if is_text else _PRINTS
        for node in ast.walk(statement):
            n_calls += isinstance(node, kinds) and not _is_call(node, names)
    return n_calls


def _is_call(node: ast.AST, names: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    return getattr(function, "attr", getattr(function, "id", "")) in names


# A loop may read at as many places as it generates.
_MAX_PLACES = 1000


class ValuesRead:
    """The reads so far of values that were not computed, by line, and what was decided by them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._n_asked: Counter[_Test] = Counter()
        self._reads: dict[str, None] = {}
        self._doubted: dict[str, None] = {}
        # The same of values that were computed, and follow from what other ranks would have.
        self._reads_of_others: dict[str, None] = {}
        self._decided_by_others: dict[str, None] = {}

    def is_truth(self, dtype: Any, *, is_comparison: bool) -> bool:
        """Say whether a read is of a truth value: of one, or of a number that decides a branch."""
        name = self.name_of_call("")
        if is_comparison or name in ("bool", "is_nonzero"):
            return True
        if str(dtype) != "torch.bool":
            return False
        call = self._calls.current
        if call is not None and isinstance(call[0], FunctionType):
            # Within torch's own Python code no further call is seen: the source shows what is
            # decided.
            return _decision() is not None
        # Zeros pass most of the checks inside of operations.
        return name in ("item", "int", "float", "index")

    def decide(self, operation: str, likelihood: float) -> bool:
        """Decide a truth value that the program reads; ``likelihood`` is that it is True."""
        value = likelihood > 0.5
        decision = None if likelihood in (0, 1) else _decision()
        if decision is not None:
            test, is_plain = decision
            self._n_asked[test] += 1
            if not is_plain:
                likelihood = 1 - likelihood
            is_true = _holds(test, likelihood, self._n_asked[test])
            self._doubt(test, test.else_branch if is_true else test.then_branch)
            value = is_true == is_plain
        self.add(f"{self.name_of_call(operation)}() taken as {value}")
        return value

    def add_numbers(self, operation: str) -> None:
        """Count a read of numbers, and note the branch of the program that they decide."""
        self.add(operation)
        decision = _decision()
        if decision is not None:
            test, _ = decision
            self._doubt(test, test.then_branch, test.else_branch)

    def add_of_others(self, operation: str) -> None:
        """Note a read of values of other ranks, and the line that they decide; not torch's own."""
        frame = _reading_frame()
        if frame is None or frame.f_code.co_filename.startswith(torch_folder()):
            return
        if len(self._reads_of_others) < _MAX_PLACES:
            self._reads_of_others.setdefault(f"{users_place()} ({operation}())")
        decision = _decision()
        if decision is not None:
            self._decided_by_others.setdefault(decision[0].line)

    def _doubt(self, test: _Test, *branches: list[Any]) -> None:
        """Note a test if a branch may be left out that needs memory, and raises no error."""
        if not (test.is_torchs or any(map(_fails, branches))) and any(
            map(_calls, branches)
        ):
            self._doubted.setdefault(test.line)

    def name_of_call(self, otherwise: str) -> str:
        """Name the call as Python does: ``bool``, and not ``__bool__``."""
        call = self._calls.current
        name = getattr(call[0], "__name__", otherwise) if call else otherwise
        return str(name).strip("_")

    def add(self, operation: str) -> None:
        """Note a read at the program's present line."""
        if len(self._reads) < _MAX_PLACES:
            self._reads.setdefault(f"{users_place()} ({operation})")

    def notes(self) -> tuple[Note, ...]:
        """List the reads of values that were not computed, or are other ranks' own."""
        others_note = _note_of_reads(
            "values-of-other-ranks",
            "values of other ranks were read at {lines}; they are taken to hold what this rank "
            "holds",
            self._reads_of_others,
            "; on the GPUs the program may go another way at {lines}",
            self._decided_by_others,
        )
        own_note = _note_of_reads(
            "values-not-computed",
            "values that were not computed were read at {lines}; numbers read as 0, or as assumed",
            self._reads,
            "; the peak may be too low: such a value decides at {lines}",
            self._doubted,
        )
        return (*others_note, *own_note)


def _note_of_reads(
    slug: str,
    message: str,
    reads: dict[str, None],
    consequence: str,
    decided: dict[str, None],
) -> list[Note]:
    """Return a note on lines that read values, and on those that the values decide; none for none.

    ``{lines}`` in both texts stands for them.
    """
    if not reads:
        return []
    text = message.format(lines=shown(reads))
    return [
        Note(slug, text + (consequence.format(lines=shown(decided)) if decided else ""))
    ]
