"""The way that a program goes where a truth value was not computed: the one that needs more memory.

What is all but certain decides first: a loss is finite, and two numbers that were computed differ. Then the
source: no error is raised, and of two branches the one with more calls is taken; a loop that waits for a
value is entered once. Knows no tensors.
"""

import ast
import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

from snapconv.recorder.program.own_frames import is_ours

# Between a program's line and an operation; not all of torch, which decides by values itself.
_PLUMBING = ("_tensor.py", "_ops.py", "_compile.py", "overrides.py", "eval_frame.py", "_python_dispatch.py")
# So often a loop goes on that only a value ends.
_PATIENCE = 1000
_JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True)
class Decision:
    """A truth value that was assumed; ``skipped`` names the lines that did not run for it, or is empty."""

    value: bool
    skipped: str = ""


class Branches:
    """Decides the truth values of one run."""

    def __init__(self) -> None:
        self._entered: Counter[tuple[str, int]] = Counter()

    def decide(self, likelihood: float) -> Decision:
        """Decide a truth value that the program's present line reads; ``likelihood`` is that it is True."""
        found = _deciding(_reading_frame())
        if found is None:
            return Decision(likelihood > 0.5)
        frame, statement, is_plain, block = found
        if likelihood in (0, 1):
            return Decision(likelihood == 1)
        key = (frame.f_code.co_filename, statement.lineno)
        self._entered[key] += 1
        is_test_true = self._test(statement, block, likelihood if is_plain else 1 - likelihood, key)
        skipped = _skipped(statement, block, is_test_true=is_test_true)
        return Decision(is_test_true == is_plain, f"{key[0]}:{skipped}" if skipped else "")

    def _test(self, statement: ast.AST, block: list[ast.stmt], likelihood: float, key: Any) -> bool:
        """Decide the whole test of a statement."""
        if isinstance(statement, ast.Assert):
            return True
        if isinstance(statement, ast.While):
            n_read, is_combined = self._entered[key], any(map(_is_combined, ast.walk(statement.test)))
            return n_read == 1 if is_combined else n_read % 2 == 1
        assert isinstance(statement, ast.If | ast.IfExp)
        taken, other = _branches(statement, block)
        if _raises(taken) != _raises(other):
            return _raises(other)
        if self._entered[key] > _PATIENCE and _ends(taken) != _ends(other):
            return _ends(taken)
        n_taken, n_other = _calls(taken), _calls(other)
        return likelihood > 0.5 if n_taken == n_other else n_taken > n_other


def _reading_frame() -> FrameType | None:
    """Find the innermost frame that is neither ours nor torch's way to an operation."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        filename = frame.f_code.co_filename
        if not is_ours(filename) and not filename.endswith(_PLUMBING):
            return frame
        frame = frame.f_back
    return None


def _deciding(frame: FrameType | None) -> tuple[FrameType, Any, bool, list[ast.stmt]] | None:
    """Find the statement that a value decides, and its frame: the caller's, of a function that returns it."""
    is_returned_plain = True
    while frame is not None:
        if found := _statement(frame):
            statement, is_plain, block = found
            return frame, statement, is_plain == is_returned_plain, block
        line, column = _position(frame)
        tree = _tree(frame.f_code.co_filename)
        returns = (node for node in ast.walk(tree) if isinstance(node, ast.Return)) if tree else ()
        value = next((node.value for node in returns if node.value and _spans(node, line, column)), None)
        if value is None:
            return None
        is_returned_plain = is_returned_plain == _is_plain(value, line, column)
        frame = frame.f_back
    return None


@lru_cache(maxsize=256)
def _tree(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None


def _statement(frame: FrameType) -> tuple[Any, bool, list[ast.stmt]] | None:
    """Find the statement whose test a frame evaluates, whether it tests the value as it is, and its block."""
    line, column = _position(frame)
    tree = _tree(frame.f_code.co_filename)
    found = None
    for statement, block in _tests(tree) if tree is not None else ():
        test = statement.test
        # A jump has the position of its statement (Python 3.11). The innermost comes last.
        if _spans(test, line, column) or (line, column) == (statement.lineno, statement.col_offset):
            found = statement, _is_plain(test, line, column), block
    return found


def _position(frame: FrameType) -> tuple[int, int | None]:
    """Return the line, and from Python 3.11 on the column, of what a frame evaluates."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None:
        for i, (line, _, column, _) in enumerate(positions()):
            if i == frame.f_lasti // 2 and line is not None:
                return line, column
    return frame.f_lineno, None


def _tests(tree: ast.AST) -> Iterator[tuple[Any, list[ast.stmt]]]:
    """List what has a test, outer first, each with the block that it is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            yield node, []
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from (
                    (item, block) for item in block if isinstance(item, ast.If | ast.While | ast.Assert)
                )


def _spans(node: Any, line: int, column: int | None) -> bool:
    if not node.lineno <= line <= node.end_lineno:
        return False
    if column is None:
        return True
    return bool((node.lineno, node.col_offset) <= (line, column) <= (node.end_lineno, node.end_col_offset))


def _is_plain(test: ast.expr, line: int, column: int | None) -> bool:
    """Say whether a value in a test makes it true by being true; by being false otherwise."""
    is_plain = True
    while True:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            is_plain, test = not is_plain, test.operand
        elif isinstance(test, ast.BoolOp):
            test = next((value for value in test.values if _spans(value, line, column)), test.values[0])
        else:
            return is_plain


def _branches(statement: Any, block: list[ast.stmt]) -> tuple[list[Any], list[Any]]:
    """Return what runs where a test holds, and where it does not: with what is behind it, if one jumps."""
    if isinstance(statement, ast.IfExp):
        return [statement.body], [statement.orelse]
    taken, other = statement.body, statement.orelse
    behind = block[block.index(statement) + 1 :]
    if isinstance(taken[-1], _JUMPS):
        other = [*other, *behind]
    elif other and isinstance(other[-1], _JUMPS):
        taken = [*taken, *behind]
    return taken, other


def _raises(branch: list[Any]) -> bool:
    return bool(branch) and isinstance(branch[-1], ast.Raise)


def _ends(branch: list[Any]) -> bool:
    return bool(branch) and isinstance(branch[-1], ast.Break | ast.Return)


def _is_combined(node: ast.AST) -> bool:
    return isinstance(node, ast.BoolOp)


def _calls(branch: list[Any]) -> int:
    """Count what may need memory: calls, and operators between values."""
    kinds = ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript
    return sum(isinstance(node, kinds) for part in branch for node in ast.walk(part))


def _skipped(statement: Any, block: list[ast.stmt], *, is_test_true: bool) -> str:
    """Name the lines that a decision leaves out, if they call anything and raise no error."""
    if isinstance(statement, ast.Assert):
        return ""
    if isinstance(statement, ast.While):
        left_out = [] if is_test_true else statement.body
    else:
        taken, other = _branches(statement, block)
        left_out = other if is_test_true else taken
    if _raises(left_out) or not _calls(left_out):
        return ""
    first, last = left_out[0].lineno, left_out[-1].end_lineno
    return str(first) if first == last else f"{first}-{last}"
