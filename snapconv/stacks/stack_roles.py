"""The roles of every stack: the frame rules, applied once per distinct frame and stack."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
    values_of,
)
from snapconv.snapshot.fields import Interner
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.paths import cached_text, is_native, is_python, normal
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role


def fitting_rules(frames: FrameTable, rules: Sequence[tuple[str, str]]) -> list[int]:
    """Return a number for every frame, with a bit for each rule that it fits.

    The first pattern of a rule is found in its name, the second in its file; an empty one fits any.
    """
    name_patterns, file_patterns = zip(*rules, strict=True)
    bits_of_name = _finder(name_patterns)
    bits_of_file = _finder(file_patterns)
    file_bits = [bits_of_file(file.replace("\\", "/")) for file in frames.files]
    names_and_files = zip(frames.names, frames.file_id.tolist(), strict=True)
    return [bits_of_name(name) & file_bits[file_id] for name, file_id in names_and_files]


@lru_cache(maxsize=4)
def _finder(patterns: tuple[str, ...]) -> Callable[[str], int]:
    """Return a function that marks the patterns found in a text.

    Files of a job have the same texts.
    """
    pattern_bits: defaultdict[str, int] = defaultdict(int)
    for number, pattern in enumerate(patterns):
        pattern_bits[pattern] |= 1 << number
    bits_of_any = pattern_bits.pop("", 0)
    searches = [
        (bits, re.compile(pattern).search) for pattern, bits in pattern_bits.items()
    ]

    @cached_text
    def find_bits(text: str) -> int:
        text_bits = bits_of_any
        for bits, search in searches:
            if search(text):
                text_bits |= bits
        return text_bits

    return find_bits


@dataclass(frozen=True, slots=True)
class StackRoles:
    """Roles by stack: ``has[role, stack]`` (bool), and the first rule that gave each.

    ``rule_id[role, stack]`` is a position in FRAME_RULES, -1 without one. ``is_empty`` marks stacks
    that were captured but have no frame: with Python-only stacks, that is the engine's thread.
    ``python`` holds only the Python frames of the stacks. ``is_closure`` marks stacks of a closure
    within an optimizer's step, ``is_hook`` those of Python code that the engine called on its own
    thread: a hook of a gradient.
    """

    stacks: StackTable
    python: StackTable
    has: BoolColumn
    rule_id: Int32Column
    is_empty: BoolColumn
    is_closure: BoolColumn
    is_hook: BoolColumn
    has_cpp: bool

    def of(self, role: Role, stack_ids: Int32Column) -> BoolColumn:
        """Return whether each of these stacks has the role; False for -1."""
        return marked_stacks(self.has[role], stack_ids)


def marked_stacks(marks: BoolColumn, stack_ids: Int32Column) -> BoolColumn:
    """Return whether each of these stacks is marked; False for -1."""
    if not marks.any():
        return np.zeros(len(stack_ids), bool)
    # What -1 finds stands at the end. An index in brackets takes half as long again.
    return np.take(np.append(marks, False), stack_ids)


# What no optimizer does itself: the closure does that its step was given, as by LBFGS and
# Lightning.
_CLOSURE_ROLES = (Role.MODULE_CALL, Role.LOSS, Role.ENGINE, Role.ZERO_GRAD)
# Outermost on the engine's thread where it calls a function of autograd's, and on Python's own
# other threads. But a decorator of torch's, such as no_grad, may be around a hook.
_NO_HOOK = re.compile(r"(^|/)(torch/(?!utils/_contextlib)|threading\.py$)")
# Built-in functions, which torch.profiler names without a file, are of torch or of Python.
_TORCH_FILE = re.compile(r"(^|/)torch/|^<torch>$")


def _bits(rules: Iterable[bool]) -> int:
    """Return the bits of the marked rules: bit n of a number stands for rule n."""
    return sum(1 << number for number, is_marked in enumerate(rules) if is_marked)


# All rules that a frame or a stack fits are the bits of one int64.
assert len(FRAME_RULES) < 64
_BITS = np.left_shift(1, np.arange(len(FRAME_RULES), dtype=np.int64))


def _bits_of_role(role: Role) -> int:
    return _bits(rule.role is role for rule in FRAME_RULES)


_BITS_OF_ROLE = np.array(list(map(_bits_of_role, Role)))
_CLOSURE_BITS = int(np.bitwise_or.reduce(_BITS_OF_ROLE[list(_CLOSURE_ROLES)]))
_MODULE_BITS = int(_BITS_OF_ROLE[Role.MODULE_CALL] | _BITS_OF_ROLE[Role.LOSS])
_OUTERMOST_BITS = _bits(rule.is_outermost for rule in FRAME_RULES)
_TORCH_OPTIMIZER_BITS = _bits(rule.slug == "optimizer-file" for rule in FRAME_RULES)


def assign_roles(stacks: StackTable) -> StackRoles:
    """Apply the frame rules; earlier rules win the record where several give one role.

    A stack of a closure that was given to an optimizer's step has not the role of an optimizer.
    """
    python = stacks.only(stacks.frames.mark_files(is_python))
    frame_bits = _bits_of_frames(stacks.frames)
    entry_bits = np.take(frame_bits & ~_OUTERMOST_BITS, stacks.frame_ids)
    stack_bits = _bits_of_stacks(stacks, entry_bits)
    # Some rules count only at the outermost Python frame of a stack.
    stack_bits |= values_of(frame_bits & _OUTERMOST_BITS, python.outermost, missing=0)
    has = (stack_bits & _BITS_OF_ROLE[:, None]) != 0
    rule_id = unknown_column(has.shape, np.int32)
    fitting = rows_of(np.bitwise_or.reduce(stack_bits) & _BITS)
    # Backwards, so that the first rule of a role is written last, and stays.
    for number in fitting[::-1].tolist():
        is_fitting = (stack_bits & _BITS[number]) != 0
        rule_id[FRAME_RULES[number].role, is_fitting] = number
    is_closure = _closures(stacks, entry_bits, has)
    has[Role.OPTIMIZER] &= ~is_closure
    rule_id[Role.OPTIMIZER, is_closure] = -1
    has_cpp = any(map(is_native, stacks.frames.files))
    roles = StackRoles(
        stacks=stacks,
        python=python,
        has=has,
        rule_id=rule_id,
        is_empty=np.diff(stacks.offsets) == 0,
        is_closure=is_closure,
        is_hook=_hooks(python, has, has_cpp=has_cpp),
        has_cpp=has_cpp,
    )
    return read_only(roles)


def _bits_of_frames(frames: FrameTable) -> Int64Column:
    """Return the bits of the rules that each frame fits."""
    patterns = [(rule.function, rule.file) for rule in FRAME_RULES]
    return np.array(fitting_rules(frames, patterns), np.int64)


def _bits_of_stacks(stacks: StackTable, entry_bits: Int64Column) -> Int64Column:
    """Return the bits of all entries of each stack."""
    has_frames = np.diff(stacks.offsets) > 0
    first = stacks.offsets[:-1][has_frames]
    stack_bits = np.zeros(len(stacks), np.int64)
    stack_bits[has_frames] = np.bitwise_or.reduceat(entry_bits, first)
    return stack_bits


def _closures(stacks: StackTable, entry_bits: Int64Column, has: BoolColumn) -> BoolColumn:
    """Mark the stacks of closures.

    Work that no optimizer does itself is further in than the optimizer.
    """
    is_closure = np.any(has[list(_CLOSURE_ROLES)], axis=0)
    step_stacks = rows_of(has[Role.OPTIMIZER])
    steps = stacks.take(step_stacks)
    step_bits = entry_bits[np.repeat(has[Role.OPTIMIZER], np.diff(stacks.offsets))]

    def innermost(bits: int) -> Int64Column:
        return innermost_places(steps, (step_bits & bits) != 0)

    optimizer = innermost(int(_BITS_OF_ROLE[Role.OPTIMIZER]))
    torch_optimizer = innermost(_TORCH_OPTIMIZER_BITS)
    is_within = innermost(_CLOSURE_BITS) < optimizer
    is_foreign = stacks.frames.mark_files(_is_foreign)
    foreign = innermost_places(steps, steps.mark_entries(is_foreign))
    # An optimizer of torch calls Python code outside of torch only through a closure.
    is_within |= (foreign < torch_optimizer) & (torch_optimizer < _NOWHERE)
    runs_modules = (has[Role.MODULE_CALL] | has[Role.LOSS])[step_stacks]
    if (is_within & runs_modules).any():
        has_module = innermost(_MODULE_BITS) < optimizer
        is_within |= _closures_with_modules(steps, is_foreign, has_module, optimizer)
    np.put(is_closure, step_stacks, is_within)
    return np.asarray(is_closure)


def _is_foreign(file: str) -> bool:
    """Return whether a file is Python code outside of torch."""
    path = normal(file)
    return is_python(path) and not _TORCH_FILE.search(path)


def _closures_with_modules(
    steps: StackTable,
    is_foreign: BoolColumn,
    has_module: BoolColumn,
    optimizer: Int64Column,
) -> BoolColumn:
    """Mark the stacks through a function that a step calls, if a module runs through it in another.

    For optimizers that are none of torch's: their own code shows nothing. A closure also puts the
    batch on the device, and computes what no module does. In the step's own file, where states are
    made too, it is known by its name. ``steps`` are stacks of steps, ``optimizer`` the places of
    the optimizers' frames.
    """
    names = steps.frames.names
    files = list(map(normal, steps.frames.filenames))

    def find_closure(stack: int) -> tuple[str, str, str] | None:
        """Return the step's file, and the closure or function of another file that it calls."""
        frames = steps.frame_ids[steps.offsets[stack] : optimizer[stack]][::-1]
        foreign = frames[is_foreign[frames]].tolist()
        for frame in foreign:
            if files[frame] != files[foreign[0]] or names[frame] == "closure":
                return files[foreign[0]], names[frame], files[frame]
        return None

    step_closures = list(map(find_closure, range(len(steps))))
    closures = set(map(step_closures.__getitem__, rows_of(has_module).tolist())) - {None}
    return np.array([closure in closures for closure in step_closures], bool)


def _hooks(python: StackTable, has: BoolColumn, *, has_cpp: bool) -> BoolColumn:
    """Mark the stacks of hooks: of Python code, not torch's, that the engine's own thread called.

    A thread of the program is known by its outermost function, through which modules are called.
    Where the outermost function is torch's, or threading's, it does not distinguish threads.
    ``python``: the Python frames of the stacks.
    """
    frame = python.outermost
    function = _functions(python.frames, frame)
    is_of_engine = has[Role.ENGINE] | has[Role.RECOMPUTE]
    runs_modules = has[Role.MODULE_CALL] | has[Role.LOSS]
    program_functions = distinct(function[~is_of_engine & runs_modules])
    if not len(program_functions):
        return np.zeros(len(frame), bool)
    may_be_hook = values_of(python.frames.mark_files(_may_be_hook), frame, missing=False)
    is_on_engine_thread = has[Role.ENGINE] | np.bool_(not has_cpp)
    is_of_program = is_among(function, program_functions)
    return np.asarray(may_be_hook & ~is_of_program & is_on_engine_thread, bool)


def _may_be_hook(file: str) -> bool:
    return not _NO_HOOK.search(normal(file))


def _functions(frames: FrameTable, frame_ids: Int32Column) -> Int64Column:
    """Return a number for the function of each of these frames, equal for its lines; -1 for -1."""
    numbers = Interner()
    function = unknown_column(len(frames))
    for frame in distinct(frame_ids[frame_ids >= 0]).tolist():
        function[frame] = numbers.id((normal(frames.filenames[frame]), frames.names[frame]))
    return values_of(function, frame_ids)


_NOWHERE = np.iinfo(np.int64).max


def innermost_places(stacks: StackTable, is_marked: BoolColumn) -> Int64Column:
    """Return for every stack the place of its first marked frame, or _NOWHERE.

    A place counts all frames of all stacks.
    """
    entries = rows_of(is_marked)
    number = np.searchsorted(entries, stacks.offsets)
    first = np.append(entries, _NOWHERE)[number[:-1]]
    return np.where(number[:-1] < number[1:], first, _NOWHERE)


def stacks_by_frame(stacks: StackTable) -> Callable[[int], Int32Column]:
    """Return a function from a frame to the stacks with it, each once.

    A recursion has a frame many times.
    """
    order = stable_order(stacks.frame_ids)
    frames = stacks.frame_ids[order]

    def stacks_with(frame: int) -> Int32Column:
        first, after = np.searchsorted(frames, (frame, frame + 1)).tolist()
        return distinct(stacks.owners[order[first:after]])

    return stacks_with
