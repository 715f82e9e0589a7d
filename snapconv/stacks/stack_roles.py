"""The roles of every stack: the frame rules, applied once per distinct frame and stack."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    distinct,
    is_among,
    read_only,
    rows_of,
    stable_order,
    unknown_column,
)
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.paths import for_every_frame, is_native, is_python, normal
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role


def fitting_rules(frames: FrameTable, rules: Sequence[tuple[str, str]]) -> list[int]:
    """Return a number for every frame, with a bit for each rule that it fits.

    The first pattern of a rule is found in its name, the second in its file; an empty one fits any.
    """
    of_name, of_file = (_finder(patterns) for patterns in zip(*rules, strict=True))
    in_file = [of_file(file.replace("\\", "/")) for file in frames.files]
    return [
        of_name(name) & in_file[file]
        for name, file in zip(frames.names, frames.file_id.tolist(), strict=True)
    ]


@lru_cache(maxsize=4)
def _finder(patterns: tuple[str, ...]) -> Callable[[str], int]:
    """Return a function that marks the patterns found in a text; files of a job have the same texts."""
    bits_of: defaultdict[str, int] = defaultdict(int)
    for number, pattern in enumerate(patterns):
        bits_of[pattern] |= 1 << number
    in_any = bits_of.pop("", 0)
    searches = [(bits, re.compile(pattern).search) for pattern, bits in bits_of.items()]

    @for_every_frame
    def bits_found(text: str) -> int:
        found = in_any
        for bits, search in searches:
            if search(text):
                found |= bits
        return found

    return bits_found


@dataclass(frozen=True, slots=True)
class StackRoles:
    """Roles by stack: ``has[role, stack]`` (bool), and the first rule that gave each.

    ``rule_id[role, stack]`` is a position in FRAME_RULES, -1 without one. ``is_empty`` marks stacks
    that were captured but have no frame: with Python-only stacks, that is the engine's thread.
    ``python`` holds only the Python frames of the stacks.
    ``in_closure`` marks stacks of a closure within an optimizer's step, ``in_hook`` those of Python
    code that the engine called on its own thread: a hook of a gradient.
    """

    stacks: StackTable
    python: StackTable
    has: BoolColumn
    rule_id: Int32Column
    is_empty: BoolColumn
    in_closure: BoolColumn
    in_hook: BoolColumn
    has_cpp: bool

    def of(self, role: Role, stack_ids: Int32Column) -> BoolColumn:
        """Return whether each of these stacks has the role; False for -1."""
        return by_stack(self.has[role], stack_ids)


def by_stack(marks: BoolColumn, stack_ids: Int32Column) -> BoolColumn:
    """Return whether each of these stacks is marked; False for -1."""
    if not marks.any():
        return np.zeros(len(stack_ids), bool)
    # What -1 finds stands at the end. An index in brackets takes half as long again.
    return np.take(np.append(marks, False), stack_ids)


# What no optimizer does itself: the closure does that its step was given, as by LBFGS and
# Lightning.
_IN_CLOSURE = (Role.MODULE_CALL, Role.LOSS, Role.ENGINE, Role.ZERO_GRAD)
# Outermost on the engine's thread where it calls a function of autograd's, and on Python's own
# other threads. But a decorator of torch's, such as no_grad, may be around a hook.
_NO_HOOK = re.compile(r"(^|/)(torch/(?!utils/_contextlib)|threading\.py$)")
_OF_TORCH = re.compile(r"(^|/)torch/")


def _bits(column: str, value: object) -> int:
    """Return the bits of the rules with this value in a column: bit n of a number stands for rule n."""
    return sum(
        1 << number for number, rule in enumerate(FRAME_RULES) if getattr(rule, column) == value
    )


assert len(FRAME_RULES) < 64  # all rules that a frame or a stack fits are the bits of one int64
_BITS = np.left_shift(1, np.arange(len(FRAME_RULES), dtype=np.int64))
_BITS_OF_ROLE = np.array([_bits("role", role) for role in Role])
_OF_OUTERMOST = _bits("is_outermost", True)
_OPTIMIZERS_OF_TORCH = _bits("slug", "optimizer-file")


def assign_roles(stacks: StackTable) -> StackRoles:
    """Apply the frame rules; earlier rules win the record where several give one role.

    A stack of a closure that was given to an optimizer's step has not the role of an optimizer.
    """
    python = stacks.only(stacks.frames.in_files(is_python))
    is_empty = np.diff(stacks.offsets) == 0
    rules = _rules_of_entries(stacks)
    of_stack = np.zeros(len(stacks), np.int64)
    of_stack[~is_empty] = np.bitwise_or.reduceat(rules, stacks.offsets[:-1][~is_empty])
    has = (of_stack & _BITS_OF_ROLE[:, None]) != 0
    rule_id = unknown_column(has.shape, np.int32)
    # Backwards, so that the first rule of a role is written last, and stays.
    for number in rows_of(np.bitwise_or.reduce(of_stack) & _BITS)[::-1].tolist():
        rule_id[FRAME_RULES[number].role, (of_stack & _BITS[number]) != 0] = number
    in_closure = _in_closures(stacks, rules, has)
    has[Role.OPTIMIZER] &= ~in_closure
    rule_id[Role.OPTIMIZER, in_closure] = -1
    has_cpp = any(map(is_native, stacks.frames.files))
    in_hook = _in_hooks(python, has, has_cpp=has_cpp)
    return read_only(
        StackRoles(stacks, python, has, rule_id, is_empty, in_closure, in_hook, has_cpp=has_cpp)
    )


def _rules_of_entries(stacks: StackTable) -> Int64Column:
    """Return the bits of the rules that each entry of ``frame_ids`` fits."""
    patterns = [(rule.function, rule.file) for rule in FRAME_RULES]
    of_frame = np.array(fitting_rules(stacks.frames, patterns), np.int64)
    found: Int64Column = np.take(of_frame, stacks.frame_ids)
    if (
        of_frame & _OF_OUTERMOST
    ).any():  # these rules count only at the outermost Python frame of a stack
        places = rows_of(stacks.with_frames(stacks.frames.in_files(is_python)))
        number = np.searchsorted(places, stacks.offsets)
        is_inner = np.ones(len(found), bool)
        is_inner[places[number[1:][number[1:] > number[:-1]] - 1]] = False
        found[is_inner] &= ~_OF_OUTERMOST
    return found


def _in_closures(stacks: StackTable, rules: Int64Column, has: BoolColumn) -> BoolColumn:
    """Mark the stacks of closures: work that no optimizer does itself is further in than the optimizer."""
    found = np.any(has[list(_IN_CLOSURE)], axis=0)
    steps = rows_of(has[Role.OPTIMIZER])
    mine = stacks.take(steps)
    rules = rules[np.repeat(has[Role.OPTIMIZER], np.diff(stacks.offsets))]

    def innermost(bits: int) -> Int64Column:
        return innermost_places(mine, (rules & bits) != 0)

    step = innermost(_BITS_OF_ROLE[Role.OPTIMIZER])
    place = innermost(_OPTIMIZERS_OF_TORCH)
    within = innermost(np.bitwise_or.reduce(_BITS_OF_ROLE[list(_IN_CLOSURE)])) < step
    is_foreign = stacks.frames.in_files(
        lambda name: is_python(normal(name)) and not _OF_TORCH.search(normal(name))
    )
    # An optimizer of torch calls Python code outside of torch only through a closure.
    within |= (innermost_places(mine, mine.with_frames(is_foreign)) < place) & (place < _NOWHERE)
    if (within & (has[Role.MODULE_CALL] | has[Role.LOSS])[steps]).any():
        through_modules = (
            innermost(_BITS_OF_ROLE[Role.MODULE_CALL] | _BITS_OF_ROLE[Role.LOSS]) < step
        )
        within |= _through_closures(mine, is_foreign, through_modules, step)
    np.put(found, steps, within)
    return np.asarray(found)


def _through_closures(
    stacks: StackTable, is_foreign: BoolColumn, through_modules: BoolColumn, step: Int64Column
) -> BoolColumn:
    """Mark the stacks through a function that a step calls, if a module runs through it in another one.

    For optimizers that are none of torch's: their own code shows nothing. A closure also puts the
    batch on the device, and computes what no module does. In the step's own file, where states are
    made too, it is known by its name. ``stacks`` are those of steps, ``step`` the places of the
    optimizers' frames.
    """
    names = stacks.frames.names
    files = list(map(normal, stacks.frames.filenames))

    def called(stack: int) -> tuple[str, str, str] | None:
        """Return the step's file, and the first closure or function of another file that it calls, if any."""
        within = stacks.frame_ids[stacks.offsets[stack] : step[stack]][::-1]
        own = within[is_foreign[within]].tolist()
        may_be = (
            frame for frame in own if files[frame] != files[own[0]] or names[frame] == "closure"
        )
        other = next(may_be, None)
        return None if other is None else (files[own[0]], names[other], files[other])

    closures = {called(stack) for stack in rows_of(through_modules).tolist()} - {None}
    return np.array([called(stack) in closures for stack in range(len(stacks))], bool)


def _in_hooks(python: StackTable, has: BoolColumn, *, has_cpp: bool) -> BoolColumn:
    """Mark the stacks of hooks: of Python code, not torch's, that the engine's own thread called.

    A thread of the program is known by its outermost function, through which modules are called.
    Where the outermost function is torch's, or threading's, it does not distinguish threads.
    ``python``: the Python frames of the stacks.
    """
    frames = python.frames
    is_any = np.diff(python.offsets) > 0
    frame = np.where(
        is_any, np.append(python.frame_ids, np.int32(-1))[python.offsets[1:] - 1], np.int32(-1)
    )
    number: dict[tuple[str, str], int] = {}
    function_of = unknown_column(len(frames) + 1)
    for one in distinct(frame[is_any]).tolist():
        pair = normal(frames.filenames[one]), frames.names[one]
        function_of[one] = number.setdefault(pair, len(number))
    function = function_of[frame]
    may_be = np.append(frames.in_files(lambda name: not _NO_HOOK.search(normal(name))), False)
    by_engine = has[Role.ENGINE] | has[Role.RECOMPUTE]
    of_program = distinct(function[~by_engine & (has[Role.MODULE_CALL] | has[Role.LOSS])])
    if not len(of_program):
        return np.zeros(len(is_any), bool)
    is_engine = has[Role.ENGINE] | np.bool_(not has_cpp)
    return np.asarray(may_be[frame] & ~is_among(function, of_program) & is_engine, bool)


_NOWHERE = np.iinfo(np.int64).max


def innermost_places(stacks: StackTable, is_marked: BoolColumn) -> Int64Column:
    """For every stack the place of the first that is marked, among all frames of all stacks, or _NOWHERE."""
    places = rows_of(is_marked)
    number = np.searchsorted(places, stacks.offsets)
    first = np.append(places, _NOWHERE)[number[:-1]]
    return np.where(number[:-1] < number[1:], first, _NOWHERE)


def stacks_by_frame(stacks: StackTable) -> Callable[[int], Int32Column]:
    """Return a function from a frame to the stacks with it, each once: a recursion has it many times."""
    order = stable_order(stacks.frame_ids)
    frames = stacks.frame_ids[order]

    def stacks_with(frame: int) -> Int32Column:
        first, after = np.searchsorted(frames, (frame, frame + 1)).tolist()
        return distinct(stacks.owners[order[first:after]])

    return stacks_with
