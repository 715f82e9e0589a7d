"""What a program reads of values that were not computed, and the way that it goes by them.

It is the way that needs more memory. What is all but certain decides first: a loss is finite, and two numbers
that were computed differ. Then the source: no error is raised, and of two branches the one with more calls is
taken; a loop that waits for a value is entered once. A branch may go another way than on a GPU all the same,
and what is only printed does no harm, which cannot be seen from here: so all reads are listed.
"""

import ast
import linecache
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import isinf, isnan
from pathlib import Path
from sysconfig import get_paths
from types import FrameType
from typing import Any

from snapconv.notes import Note
from snapconv.recorder.program.own_frames import program_frames
from snapconv.simulation.patches import Calls
from snapconv.units import counted

# Between a program's line and an operation; not all of torch, which decides by values itself.
_MODULES = ("_tensor", "_ops", "_compile", "overrides", "_dynamo/eval_frame", "utils/_python_dispatch")
_PLUMBING = tuple(f"/torch/{name}.py" for name in _MODULES)
# So often a loop goes on that only a value ends.
_PATIENCE = 1000
# torch/autograd/graph.py
ENGINE_CALLER = "_engine_run_backward"
_JUMPS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True)
class _Test:
    """A test in the source: what runs where it holds, and where not, with what is behind it if one jumps."""

    node: Any
    taken: list[Any]
    other: list[Any]


def _is_true(test: _Test, likelihood: float, n_read: int) -> bool:
    """Decide the whole test of a statement that is met for the n-th time."""
    if isinstance(test.node, ast.While):
        is_combined = any(isinstance(node, ast.BoolOp) for node in ast.walk(test.node.test))
        return n_read == 1 if is_combined else n_read % 2 == 1
    taken, other = test.taken, test.other
    if _fails(taken) != _fails(other):
        return _fails(other)
    leaves = ast.Break | ast.Return
    if n_read > _PATIENCE and _ends_by(taken, leaves) != _ends_by(other, leaves):
        return _ends_by(taken, leaves)
    n_taken, n_other = _calls(taken), _calls(other)
    return likelihood > 0.5 if n_taken == n_other else n_taken > n_other


def _reading_frame() -> FrameType | None:
    """Find the innermost frame that is neither ours nor torch's way to an operation."""
    frames = program_frames()
    return next((frame for frame in frames if not frame.f_code.co_filename.endswith(_PLUMBING)), None)


def _deciding(frame: FrameType | None) -> tuple[str, _Test, bool] | None:
    """Find the file and the test that a value decides: the caller's, of a function that returns the value.

    The third is whether the value makes the test true by being true.
    """
    is_returned_plain = True
    while frame is not None:
        (line, column), end = _position(frame)
        tests, returned = _decisions(frame.f_code.co_filename)
        found = None
        for test in tests:
            # A jump has the position of its statement or conditional expression (Python 3.11); what this one
            # begins with ends before it. The innermost comes last.
            node = test.node
            is_jump = (line, column) == (node.lineno, node.col_offset)
            if isinstance(node, ast.IfExp):
                is_jump &= end == (node.end_lineno, node.end_col_offset)
            if is_jump or _spans(node.test, line, column):
                found = test
        if found is not None:
            is_plain = _is_plain(found.node.test, line, column)
            return frame.f_code.co_filename, found, is_plain == is_returned_plain
        value = next((node.value for node in returned if _spans(node, line, column)), None)
        if value is None:
            return None
        is_returned_plain = is_returned_plain == _is_plain(value, line, column)
        frame = frame.f_back
    return None


@lru_cache(maxsize=256)
def _decisions(filename: str) -> tuple[list[_Test], list[Any]]:
    """List a file's tests, outer first, and what returns a value."""
    try:
        nodes = [*ast.walk(ast.parse("".join(linecache.getlines(filename))))]
    except (SyntaxError, ValueError):
        return [], []
    tests: list[_Test] = []
    for node in nodes:
        if isinstance(node, ast.IfExp):
            tests.append(_Test(node, [node.body], [node.orelse]))
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                tests += (test for i, item in enumerate(block) for test in _tested(item, block[i + 1 :]))
    return tests, [node for node in nodes if isinstance(node, ast.Return) and node.value]


def _tested(node: ast.AST, behind: list[ast.stmt]) -> Iterator[_Test]:
    if isinstance(node, ast.Assert):
        yield _Test(node, [], [ast.Raise()])
    elif isinstance(node, ast.While):
        yield _Test(node, node.body, [])
    elif isinstance(node, ast.If):
        taken, other = node.body, node.orelse
        if isinstance(taken[-1], _JUMPS):
            other = [*other, *behind]
        elif other and isinstance(other[-1], _JUMPS):
            taken = [*taken, *behind]
        yield _Test(node, taken, other)


def _position(frame: FrameType) -> tuple[tuple[int, int | None], Any]:
    """Return the line, from Python 3.11 on the column, of what a frame evaluates; and those of its end."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None:
        line, end_line, column, end = next(islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
        if line is not None:
            return (line, column), (end_line, end)
    return (frame.f_lineno, None), None


def _spans(node: Any, line: int, column: int | None) -> bool:
    if column is None:
        return bool(node.lineno <= line <= node.end_lineno)
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


def _fails(branch: list[Any]) -> bool:
    if not branch or not isinstance(branch[-1], ast.Expr):
        return _ends_by(branch, ast.Raise)
    called = getattr(branch[-1].value, "func", None)
    return getattr(called, "attr", getattr(called, "id", None)) in ("exit", "_exit", "quit", "abort")


def _ends_by(branch: list[Any], kinds: Any) -> bool:
    return bool(branch) and isinstance(branch[-1], kinds)


# They print or log what the others make: texts and numbers.
_PRINTS = {"print", "debug", "info", "warning", "warn", "error", "critical", "exception"}
_TEXTS = {*"item tolist str repr int float len round format join sum mean norm".split()}


def _calls(branch: list[Any]) -> int:
    """Count what may need memory: calls, and operators between values; not what only prints."""
    kinds = ast.Call | ast.BinOp | ast.AugAssign | ast.Subscript
    nodes = [node for part in branch for node in ast.walk(part)]
    printed = {inner for node in nodes if _is_call(node, _PRINTS) for inner in ast.walk(node)}
    harmless = {
        node for node in printed if not isinstance(node, ast.Call) or _is_call(node, _PRINTS | _TEXTS)
    }
    return sum(isinstance(node, kinds) and node not in harmless for node in nodes)


def _is_call(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names


# How likely a truth value is that was not computed, of finite numbers that all differ.
_CERTAIN = {
    **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), 0.0),
    **dict.fromkeys(("isfinite", "isreal"), 1.0),
}
_AS_BEFORE = {"_to_copy", "clone", "index", "index_select", "gather", "repeat", "cat", "flip", "bitwise_and"}
# Of truth values that are neither all False nor all True, some are True, and not all.
_SOME = {"any": 0.9, "all": 0.1}


def likelihood_of(call: Any) -> float:
    """Estimate how likely a truth value is True that an operation has for its result, and did not compute."""
    name, args = call.operation.name, call.args
    given = [0.5 if placement is None else placement.likelihood for placement in call.inputs]
    if name in ("eq", "ne"):  # a value equals itself, never infinity, and no one number
        is_special = isinstance(args[1], float) and (isinf(args[1]) or isnan(args[1]))
        is_equal = 1.0 if args[0] is args[1] else 0.0 if is_special or args[0].numel() == 1 else 0.5
        return is_equal if name == "eq" else 1 - is_equal
    if name in _SOME and given and given[0] not in (0, 1) and args[0].numel() != 1:
        return _SOME[name]
    if name in ("logical_not", "bitwise_not"):
        return 1 - given[0]
    if name in ("logical_and", "bitwise_and", "mul") and len(given) == len(args):
        return min(given)
    if name in ("logical_or", "bitwise_or") and len(given) == len(args):
        return max(given)
    is_as_before = name in _AS_BEFORE or name in _SOME
    return given[0] if is_as_before and given else _CERTAIN.get(name, 0.5)


_STANDARD_LIBRARY = get_paths()["stdlib"]
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
# A loop may read at as many places as it generates.
_MAX_PLACES = 1000
_MAX_SHOWN = 4

# What decides a branch or a shape for certain is listed first.
_ORDER = {"shape": 0, "bool()": 1}


class ValuesRead:
    """The reads so far of values that were not computed, by place, and what was decided by them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._entered: Counter[tuple[str, int]] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._skipped: dict[str, None] = {}
        self._entered_unread: dict[str, None] = {}
        self._doubted: dict[str, None] = {}

    def is_truth(self, dtype: Any, *, is_comparison: bool) -> bool:
        """Say whether a read is of a truth value: of one, or of a number that decides a branch."""
        name = self.name_of_call("")
        if is_comparison or name in ("bool", "is_nonzero"):
            return True
        # Of the checks inside of operations zeros pass most.
        return str(dtype) == "torch.bool" and name in ("item", "int", "float", "index")

    def decide(self, operation: str, likelihood: float) -> bool:
        """Decide a truth value that the program's present line reads; ``likelihood`` is that it is True."""
        found = _deciding(_reading_frame())
        value = likelihood > 0.5
        if found is not None and likelihood not in (0, 1):
            filename, test, is_plain = found
            key = (filename, test.node.lineno)
            self._entered[key] += 1
            n_read = self._entered[key]
            is_torchs = filename.startswith(torch_folder())
            if is_torchs and n_read % 2 == 0:
                n_read += _PATIENCE  # a loop of torch's own, which draws again what is out of bounds
            is_true = _is_true(test, likelihood if is_plain else 1 - likelihood, n_read)
            value = is_true == is_plain
            entered, left_out = (test.taken, test.other)[:: 1 if is_true else -1]
            is_sure = is_torchs or isinstance(test.node, ast.While) or _fails(left_out)
            if _calls(entered) and not is_sure:
                self._entered_unread.setdefault(f"{shortened(filename)}:{test.node.lineno}")
            self._skip(found, is_true=is_true)
        self.add(f"{self.name_of_call(operation)}() taken as {value}")
        return value

    def _skip(self, found: tuple[str, _Test, bool], *, is_true: bool) -> None:
        left_out = found[1].other if is_true else found[1].taken
        if _calls(left_out) and not _fails(left_out) and not found[0].startswith(torch_folder()):
            first, last = left_out[0].lineno, left_out[-1].end_lineno
            self._skipped.setdefault(f"{shortened(found[0])}:{first}" + (f"-{last}" if last != first else ""))

    def add_numbers(self, what: str) -> None:
        """Count numbers that the program was given, and where they decide a branch, except those of torch."""
        self.add(what)
        found = _deciding(_reading_frame())
        if found is not None and not found[0].startswith(torch_folder()):
            ways = [way for way in (found[1].taken, found[1].other) if not _fails(way)]
            if len(ways) == 2 and any(map(_calls, ways)):
                self._doubted.setdefault(f"{shortened(found[0])}:{found[1].node.lineno}")

    def name_of_call(self, otherwise: str) -> str:
        """Name the call as Python does: ``bool``, and not ``__bool__``."""
        call = self._calls.current
        return str(getattr(call[0], "__name__", otherwise) if call else otherwise).strip("_")

    def add(self, what: str) -> None:
        """Count one read at the program's present line."""
        key = (users_place(), what)
        if key in self._counts or len(self._counts) < _MAX_PLACES:
            self._counts[key] += 1

    def notes(self) -> tuple[Note, ...]:
        """Say where values were read that there were not, what decides a branch for certain first."""
        if not self._counts:
            return ()
        rows = sorted(self._counts.items(), key=lambda row: _ORDER.get(row[0][1].partition(" ")[0], 2))
        places = shown(
            [f"{where} ({what}{f', {count} times' if count > 1 else ''})" for (where, what), count in rows]
        )
        message = f"values that were not computed were read at {places}; numbers read as 0, or as assumed"
        if self._entered_unread:
            message += f"; the peak may be too high: entered were those at {shown(self._entered_unread)}"
        if self._skipped:
            message += f"; the peak may be too low: skipped were {shown(self._skipped)}"
        if self._doubted:
            message += f"; the peak may be too low: such a number decides at {shown(self._doubted)}"
        return (Note("values-not-computed", message),)


def shown(listed: Iterable[str], noun: str = "place") -> str:
    """Name the first ones of a list, and how many more there are."""
    every = [*listed]
    n_more = len(every) - _MAX_SHOWN
    return ", ".join(every[:_MAX_SHOWN]) + (f" and {counted(n_more, f'more {noun}')}" if n_more > 0 else "")


def torch_folder() -> str:
    """Return the folder of torch's own files."""
    return str(Path(str(sys.modules["torch"].__file__)).parent)


def users_place() -> str:
    """Name the innermost line outside torch; for one in a library, also the program's that led to it."""
    of_torch = torch_folder()
    innermost = None
    for frame in program_frames():
        filename = frame.f_code.co_filename
        if not filename.startswith((of_torch, "<")):
            place = f"{shortened(filename)}:{frame.f_lineno}"
            is_library = any(folder in filename for folder in _LIBRARY_FOLDERS)
            if not is_library and not filename.startswith(_STANDARD_LIBRARY):
                return place if innermost is None else f"{innermost} called at {place}"
            innermost = innermost or place
    return innermost or "(unknown line)"


def users_own_place() -> str:
    """Name the innermost line outside the standard library if it is the program's, nothing otherwise."""
    for frame in program_frames():
        filename = frame.f_code.co_filename
        if any(folder in filename for folder in _LIBRARY_FOLDERS):
            return ""
        if not filename.startswith((_STANDARD_LIBRARY, "<")):
            return f"{shortened(filename)}:{frame.f_lineno}"
    return ""


def shortened(filename: str) -> str:
    """Write a library's file from its package on, the program's from the current folder on."""
    for folder in _LIBRARY_FOLDERS:
        _, found, rest = filename.replace("\\", "/").rpartition(f"/{folder}/")
        if found:
            return rest
    return filename.removeprefix(f"{Path.cwd()}{os.sep}")
