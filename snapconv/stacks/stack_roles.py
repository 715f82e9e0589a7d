"""The roles of every stack: the frame rules, applied once per distinct frame and stack."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    run_starts,
    stable_order,
)
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.paths import for_every_frame, is_native, is_python, normal
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role


def matching_frames(frames: FrameTable, rules: Sequence[tuple[str, str]]) -> Iterator[BoolColumn]:
    """Yield the frames that each rule fits: its first pattern in their name, its second in their file.

    An empty pattern fits any.
    """
    if not rules:
        return
    functions, files = zip(*rules, strict=True)
    in_name = _found(functions, frames.names)
    in_file = _found(files, (file.replace("\\", "/") for file in frames.filenames))
    yield from map(np.logical_and, in_name, in_file)


def _found(patterns: tuple[str, ...], texts: Iterable[str]) -> BoolColumn:
    """Return whether each pattern, a row, is found in each text."""
    marks = b"".join(map(_finder(patterns), texts))
    return np.ascontiguousarray(np.frombuffer(marks, np.bool_).reshape(-1, len(patterns)).T)


@lru_cache(maxsize=4)
def _finder(patterns: tuple[str, ...]) -> Callable[[str], bytes]:
    """Return a function that marks the patterns found in a text; files of a job have the same texts."""
    searches = [re.compile(pattern).search for pattern in patterns]
    return for_every_frame(lambda text: bytes(search(text) is not None for search in searches))


@dataclass(frozen=True, slots=True)
class StackRoles:
    """Roles by stack: ``has[role, stack]`` (bool), and the first rule that gave each.

    ``rule_id[role, stack]`` is a position in FRAME_RULES, -1 without one. ``is_empty`` marks stacks that
    were captured but have no frame: with Python-only stacks, that is the engine's thread.
    ``python`` holds only the Python frames of the stacks.
    ``in_closure`` marks stacks of a closure within an optimizer's step, ``in_hook`` those of Python code that
    the engine called on its own thread: a hook of a gradient.
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
        return np.zeros(len(stack_ids), np.bool_)
    # What -1 finds stands at the end. An index in brackets takes half as long again.
    return np.take(np.append(marks, False), stack_ids)


# What no optimizer does itself: the closure does that its step was given, as by LBFGS and Lightning.
_IN_CLOSURE = (Role.MODULE_CALL, Role.LOSS, Role.ENGINE, Role.ZERO_GRAD)
# Outermost on the engine's thread where it calls a function of autograd's, and on Python's own other threads.
# But a decorator of torch's, such as no_grad, may be around a hook.
_NO_HOOK = re.compile(r"(^|/)(torch/(?!utils/_contextlib)|threading\.py$)")
_OF_TORCH = re.compile(r"(^|/)torch/")
_OPTIMIZERS_OF_TORCH = "optimizer-file"


def assign_roles(stacks: StackTable) -> StackRoles:
    """Apply the frame rules; earlier rules win the record where several give one role.

    A stack of a closure that was given to an optimizer's step has not the role of an optimizer.
    """
    innermost = np.full((len(Role), len(stacks)), _NOWHERE)
    rule_id = np.full((len(Role), len(stacks)), -1, np.int32)
    python = np.array([is_python(name) for name in stacks.frames.filenames], np.bool_)
    outermost = _outermost(stacks, python)
    by_slug: dict[str, Int64Column] = {}
    patterns = [(rule.function, rule.file) for rule in FRAME_RULES]
    fitting = matching_frames(stacks.frames, patterns)
    for number, (rule, frames) in enumerate(zip(FRAME_RULES, fitting, strict=True)):
        if not frames.any():
            continue
        is_match = stacks.with_frames(frames)
        place = by_slug[rule.slug] = innermost_places(
            stacks, is_match & outermost if rule.is_outermost else is_match
        )
        innermost[rule.role] = np.minimum(innermost[rule.role], place)
        rule_id[rule.role][(place < _NOWHERE) & (rule_id[rule.role] < 0)] = number
    has = innermost < _NOWHERE
    files = [normal(name) for name in stacks.frames.filenames]
    is_foreign = np.array([is_python(name) and not _OF_TORCH.search(name) for name in files], np.bool_)
    in_closure = innermost[list(_IN_CLOSURE)].min(axis=0) < innermost[Role.OPTIMIZER]
    if _OPTIMIZERS_OF_TORCH in by_slug:
        # One of torch's calls no Python code that is not torch's, but for a closure.
        place = by_slug[_OPTIMIZERS_OF_TORCH]
        in_closure |= (innermost_places(stacks, stacks.with_frames(is_foreign)) < place) & (place < _NOWHERE)
    through_modules = innermost[[Role.MODULE_CALL, Role.LOSS]].min(axis=0) < innermost[Role.OPTIMIZER]
    in_closure |= _through_closures(stacks, files, is_foreign, through_modules, innermost[Role.OPTIMIZER])
    has[Role.OPTIMIZER] &= ~in_closure
    rule_id[Role.OPTIMIZER][in_closure] = -1
    has_cpp = any(is_native(name) for name in stacks.frames.filenames)
    in_hook = _in_hooks(stacks, files, has, outermost, has_cpp=has_cpp)
    is_empty = np.diff(stacks.offsets) == 0
    of_stacks = (has, rule_id, is_empty, in_closure, in_hook)
    return read_only(StackRoles(stacks, stacks.only(python), *of_stacks, has_cpp=has_cpp))


def _through_closures(
    stacks: StackTable,
    files: list[str],
    is_foreign: BoolColumn,
    through_modules: BoolColumn,
    step: Int64Column,
) -> BoolColumn:
    """Mark the stacks through a function that a step calls, if a module runs through it in another one.

    For optimizers that are none of torch's: their own code shows nothing. A closure also puts the batch on
    the device, and computes what no module does. In the step's own file, where states are made too, it is
    known by its name. ``step``: the place of the innermost frame of an optimizer.
    """
    found = np.zeros(len(step), np.bool_)
    through_step = np.flatnonzero(step < _NOWHERE)
    if not through_modules[through_step].any():
        return found
    names = stacks.frames.names

    def called(stack: int) -> tuple[str, str, str] | None:
        """Return the step's file, and the first closure or function of another file that it calls, if any."""
        within = stacks.frame_ids[stacks.offsets[stack] : step[stack]][::-1]
        own = within[is_foreign[within]].tolist()
        may_be = (frame for frame in own if files[frame] != files[own[0]] or names[frame] == "closure")
        other = next(may_be, None)
        return None if other is None else (files[own[0]], names[other], files[other])

    closures = {called(stack) for stack in through_step[through_modules[through_step]].tolist()} - {None}
    if closures:
        found[[stack for stack in through_step.tolist() if called(stack) in closures]] = True
    return found


def _in_hooks(
    stacks: StackTable, files: list[str], has: BoolColumn, outermost: BoolColumn, *, has_cpp: bool
) -> BoolColumn:
    """Mark the stacks of hooks: of Python code, not torch's, that the engine's own thread called.

    A thread of the program is known by its outermost function, through which modules are called. Where the
    outermost function is torch's, or threading's, it does not distinguish threads.
    """
    number: dict[tuple[str, str], int] = {}
    pairs = zip(files, stacks.frames.names, strict=True)
    function_of = np.array([number.setdefault(pair, len(number)) for pair in pairs] + [-1], np.int64)
    may_be = np.array([not _NO_HOOK.search(name) for name in files] + [False], np.bool_)
    places = np.flatnonzero(outermost)
    frame = np.full(len(stacks), -1, np.int32)
    frame[stacks.owners[places]] = stacks.frame_ids[places]
    function = function_of[frame]
    by_engine = has[Role.ENGINE] | has[Role.RECOMPUTE]
    of_program = distinct(function[~by_engine & (has[Role.MODULE_CALL] | has[Role.LOSS])])
    if not len(of_program):
        return np.zeros(len(stacks), np.bool_)
    is_engine = has[Role.ENGINE] | np.bool_(not has_cpp)
    return np.asarray(may_be[frame] & ~is_among(function, of_program) & is_engine, np.bool_)


def innermost_python(stacks: StackTable) -> Int32Column:
    """For every stack its innermost Python frame, -1 without one."""
    return innermost_frames(stacks, np.array([is_python(name) for name in stacks.frames.filenames], np.bool_))


def innermost_frames(stacks: StackTable, marked: BoolColumn) -> Int32Column:
    """For every stack the innermost of the marked frames, -1 without one."""
    place = innermost_places(stacks, stacks.with_frames(marked))
    frames = np.full(len(stacks), -1, np.int32)
    frames[place < _NOWHERE] = stacks.frame_ids[place[place < _NOWHERE]]
    return frames


_NOWHERE = np.iinfo(np.int64).max


def innermost_places(stacks: StackTable, is_marked: BoolColumn) -> Int64Column:
    """For every stack the place of the first that is marked, among all frames of all stacks, or _NOWHERE."""
    places = np.flatnonzero(is_marked)
    owner = stacks.owners[places]
    first = run_starts(owner)
    found = np.full(len(stacks), _NOWHERE)
    found[owner[first]] = places[first]
    return found


def stacks_by_frame(stacks: StackTable) -> Callable[[int], Int32Column]:
    """Return a function from a frame to the stacks with it, each once: a recursion has it many times."""
    order = stable_order(stacks.frame_ids)
    frames = stacks.frame_ids[order]

    def stacks_with(frame: int) -> Int32Column:
        first, after = np.searchsorted(frames, (frame, frame + 1)).tolist()
        return distinct(stacks.owners[order[first:after]])

    return stacks_with


def _outermost(stacks: StackTable, marked: BoolColumn) -> BoolColumn:
    """Mark, among all frames of all stacks, the last of each that is marked."""
    places = np.flatnonzero(stacks.with_frames(marked))
    owner = stacks.owners[places]
    mark = np.zeros(len(stacks.frame_ids), np.bool_)
    mark[places[np.append(owner[1:] != owner[:-1], True)[: len(owner)]]] = True
    return mark
