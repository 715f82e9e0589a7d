"""The roles of every stack: the frame rules, applied once per distinct frame and stack."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, Int64Column, distinct, is_among, read_only
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.paths import is_native, is_python, normal
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, FrameRule
from snapconv.torch_knowledge.frame_roles import Role


class _Pattern(Protocol):
    """The frame pattern of any rule: two regular expressions, empty for anything."""

    @property
    def function(self) -> str:
        """Searched in the frame's name."""

    @property
    def file(self) -> str:
        """Searched in its file name, with forward slashes."""


class FrameMatcher:
    """The frames that patterns fit: each pattern is searched once in every distinct name and file."""

    def __init__(self, frames: FrameTable) -> None:
        names = {name: number for number, name in enumerate(dict.fromkeys(frames.names))}
        files = {file: number for number, file in enumerate(dict.fromkeys(frames.filenames))}
        self._names, self._files = list(names), [file.replace("\\", "/") for file in files]
        self._name_of = np.array([names[name] for name in frames.names], np.int64)
        self._file_of = np.array([files[file] for file in frames.filenames], np.int64)
        self._found_files: dict[str, BoolColumn] = {}

    def matches(self, rule: _Pattern) -> BoolColumn:
        """Mark the frames in which both of a rule's patterns are found."""
        in_name = _found(rule.function, self._names)
        if not in_name.any():
            return np.zeros(len(self._name_of), np.bool_)
        if rule.file not in self._found_files:
            self._found_files[rule.file] = _found(rule.file, self._files)
        return np.asarray(in_name[self._name_of] & self._found_files[rule.file][self._file_of])


def _found(pattern: str, texts: list[str]) -> BoolColumn:
    search = re.compile(pattern).search
    return np.array([search(text) is not None for text in texts], np.bool_)


@dataclass(frozen=True, slots=True)
class StackRoles:
    """Roles by stack: ``has[role, stack]`` (bool), and the first rule that gave it, for the record.

    ``rule_id[role, stack]`` is a position in ``rules``, -1 without one. ``is_empty`` marks stacks that
    were captured but have no frame: with Python-only stacks, that is the engine's thread.
    ``in_closure`` marks stacks of a closure within an optimizer's step, ``in_hook`` those of Python code that
    the engine called on its own thread: a hook of a gradient.
    """

    stacks: StackTable
    rules: tuple[FrameRule, ...]
    has: BoolColumn
    rule_id: Int32Column
    is_empty: BoolColumn
    in_closure: BoolColumn
    in_hook: BoolColumn
    has_cpp: bool

    def of(self, role: Role, stack_ids: Int32Column) -> BoolColumn:
        """Return whether each of these stacks has the role; False for -1."""
        return _by_stack(self.has[role], stack_ids)

    def is_in_closure(self, stack_ids: Int32Column) -> BoolColumn:
        """Return whether each of these stacks is of a closure within a step; False for -1."""
        return _by_stack(self.in_closure, stack_ids)

    def is_in_hook(self, stack_ids: Int32Column) -> BoolColumn:
        """Return whether each of these stacks is of a hook that the engine called; False for -1."""
        return _by_stack(self.in_hook, stack_ids)


def _by_stack(marks: BoolColumn, stack_ids: Int32Column) -> BoolColumn:
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


def assign_roles(stacks: StackTable, rules: tuple[FrameRule, ...] = FRAME_RULES) -> StackRoles:
    """Apply the rules; earlier rules win the record where several give one role.

    A stack of a closure that was given to an optimizer's step has not the role of an optimizer.
    """
    n_stacks = len(stacks)
    lengths = np.diff(stacks.offsets)
    stack_of_frame = np.repeat(np.arange(n_stacks), lengths)
    place = np.arange(len(stacks.frame_ids)) - np.repeat(stacks.offsets[:-1], lengths)
    innermost = np.full((len(Role), n_stacks), np.iinfo(np.int64).max)
    has = np.zeros((len(Role), n_stacks), np.bool_)
    rule_id = np.full((len(Role), n_stacks), -1, np.int32)
    outermost = _outermost_python(stacks, stack_of_frame)
    matcher = FrameMatcher(stacks.frames)
    for number, rule in enumerate(rules):
        frames = matcher.matches(rule)
        if not frames.any():
            continue
        is_match = frames[stacks.frame_ids]
        if rule.is_outermost:
            is_match = is_match & outermost
        hit = np.bincount(stack_of_frame[is_match], minlength=n_stacks) > 0
        has[rule.role] |= hit
        np.minimum.at(innermost[rule.role], stack_of_frame[is_match], place[is_match])
        rule_id[rule.role][hit & (rule_id[rule.role] < 0)] = number
    in_closure = innermost[list(_IN_CLOSURE)].min(axis=0) < innermost[Role.OPTIMIZER]
    in_closure |= _called_by_optimizer(stacks, matcher, stack_of_frame, place)
    through_modules = innermost[[Role.MODULE_CALL, Role.LOSS]].min(axis=0) < innermost[Role.OPTIMIZER]
    in_closure |= _through_closures(stacks, through_modules, innermost[Role.OPTIMIZER])
    has[Role.OPTIMIZER] &= ~in_closure
    rule_id[Role.OPTIMIZER][in_closure] = -1
    has_cpp = any(is_native(name) for name in stacks.frames.filenames)
    in_hook = _in_hooks(stacks, has, outermost, has_cpp=has_cpp)
    roles = StackRoles(stacks, rules, has, rule_id, lengths == 0, in_closure, in_hook, has_cpp=has_cpp)
    return read_only(roles)


def _called_by_optimizer(
    stacks: StackTable, matcher: FrameMatcher, stack_of_frame: Int64Column, place: Int64Column
) -> BoolColumn:
    """Mark the stacks in which an optimizer of torch's called Python code that is not torch's: a closure."""
    rule = next(rule for rule in FRAME_RULES if rule.slug == "optimizer-file")
    files = [normal(name) for name in stacks.frames.filenames]
    is_foreign = np.array([is_python(name) and not _OF_TORCH.search(name) for name in files], np.bool_)
    missing = np.iinfo(np.int64).max
    innermost = np.full((2, len(stacks)), missing)
    for number, frames in enumerate((is_foreign, matcher.matches(rule))):
        here = frames[stacks.frame_ids]
        np.minimum.at(innermost[number], stack_of_frame[here], place[here])
    foreign, optimizer = innermost
    return np.asarray((foreign < optimizer) & (optimizer < missing))


def _through_closures(stacks: StackTable, through_modules: BoolColumn, step: Int64Column) -> BoolColumn:
    """Mark the stacks through a function that a step calls, if a module runs through it in another one.

    For optimizers that are none of torch's: their own code shows nothing. A closure also puts the batch on
    the device, and computes what no module does. In the step's own file, where states are made too, it is
    known by its name. ``step``: the place of the innermost frame of an optimizer.
    """
    found = np.zeros(len(step), np.bool_)
    through_step = np.flatnonzero(step < np.iinfo(np.int64).max)
    if not through_modules[through_step].any():
        return found
    files, names = [normal(name) for name in stacks.frames.filenames], stacks.frames.names

    def called(stack: int) -> tuple[str, str, str] | None:
        """Return the step's file, and the first closure or function of another file that it calls, if any."""
        within = stacks.frames_of(stack)[: int(step[stack])].tolist()[::-1]
        own = [frame for frame in within if is_python(files[frame]) and not _OF_TORCH.search(files[frame])]
        may_be = (frame for frame in own if files[frame] != files[own[0]] or names[frame] == "closure")
        other = next(may_be, None)
        return None if other is None else (files[own[0]], names[other], files[other])

    closures = {called(stack) for stack in through_step[through_modules[through_step]].tolist()} - {None}
    if closures:
        found[[stack for stack in through_step.tolist() if called(stack) in closures]] = True
    return found


def _in_hooks(stacks: StackTable, has: BoolColumn, outermost: BoolColumn, *, has_cpp: bool) -> BoolColumn:
    """Mark the stacks of hooks: of Python code, not torch's, that the engine's own thread called.

    A thread of the program is known by its outermost function, through which modules are called. Where the
    outermost function is torch's, or threading's, it does not distinguish threads.
    """
    files = [normal(name) for name in stacks.frames.filenames]
    pairs = list(zip(files, stacks.frames.names, strict=True))
    number = {pair: position for position, pair in enumerate(dict.fromkeys(pairs))}
    function_of = np.array([number[pair] for pair in pairs], np.int64)
    places = np.flatnonzero(outermost)
    owner = np.searchsorted(stacks.offsets, places, side="right") - 1
    function = np.full(len(stacks), -1, np.int64)
    function[owner] = function_of[stacks.frame_ids[places]]
    may_be_hook = np.zeros(len(stacks), np.bool_)
    fits = np.array([not _NO_HOOK.search(name) for name in files], np.bool_)
    may_be_hook[owner] = fits[stacks.frame_ids[places]]
    by_engine = has[Role.ENGINE] | has[Role.RECOMPUTE]
    of_program = distinct(function[~by_engine & (has[Role.MODULE_CALL] | has[Role.LOSS])])
    if not len(of_program):
        return np.zeros(len(stacks), np.bool_)
    is_engine = has[Role.ENGINE] | np.bool_(not has_cpp)
    return np.asarray(may_be_hook & ~is_among(function, of_program) & is_engine, np.bool_)


def frames_of_function(frames: FrameTable, function: str, file: str) -> BoolColumn:
    """Mark the frames of a function, by its name and by how the normal path of its file ends."""
    marked = np.zeros(len(frames), np.bool_)
    place = -1
    with suppress(ValueError):  # there is no further one; a file may have a device for each kilobyte
        while True:
            place = frames.names.index(function, place + 1)
            marked[place] = normal(frames.filenames[place]).endswith(file)
    return marked


def innermost_python(stacks: StackTable) -> Int32Column:
    """For every stack its innermost Python frame, -1 without one."""
    return innermost_frames(stacks, np.array([is_python(name) for name in stacks.frames.filenames], np.bool_))


def innermost_frames(stacks: StackTable, marked: BoolColumn) -> Int32Column:
    """For every stack the innermost of the marked frames, -1 without one."""
    places = np.flatnonzero(marked[stacks.frame_ids])
    owner = np.searchsorted(stacks.offsets, places, side="right") - 1
    found, first = np.unique(owner, return_index=True)
    frames = np.full(len(stacks), -1, np.int32)
    frames[found] = stacks.frame_ids[places[first]]
    return frames


def stacks_by_frame(stacks: StackTable) -> Callable[[int], Int64Column]:
    """Return a function from a frame to the stacks with it, each once: a recursion has it many times."""
    owner = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    order = np.argsort(stacks.frame_ids, kind="stable")
    frames = stacks.frame_ids[order]

    def stacks_with(frame: int) -> Int64Column:
        first, after = np.searchsorted(frames, (frame, frame + 1)).tolist()
        return distinct(owner[order[first:after]])

    return stacks_with


def _outermost_python(stacks: StackTable, stack_of_frame: Int64Column) -> BoolColumn:
    """Mark, among all frames of all stacks, the last Python frame of each."""
    python = np.array([is_python(name) for name in stacks.frames.filenames], np.bool_)
    places = np.flatnonzero(python[stacks.frame_ids])
    mark = np.zeros(len(stacks.frame_ids), np.bool_)
    if len(places):
        owner = stack_of_frame[places]
        mark[places[np.concatenate((owner[1:] != owner[:-1], [True]))]] = True
    return mark
