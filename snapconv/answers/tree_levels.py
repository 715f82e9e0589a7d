"""The levels of a tree of live memory: the group of every allocation, and the names of a group.

    line · module · operation · category · compile-context · annotation · pool · stream
    thread · size

Levels may be combined. Lines come last by themselves, but below modules, which have them inside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.peak import pool_ids, pool_shown
from snapconv.classification.categories import Category
from snapconv.columns import unknown_column, values_of
from snapconv.phases.annotation_spans import find_annotation_paths
from snapconv.replay.memory_layout import layout_at
from snapconv.stacks.paths import UNKNOWN_FILES, is_python
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.stacks.stack_facts import WITHIN
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import format_bytes, optional, shortened

# Characters of a name, and modules around a module; no real file comes near.
_MOST_OF_NAME, _MOST_OF_MODULES = 200, 64
NO_MODULE = "no module known"
NO_ANNOTATION = "outside every annotation"
NO_CONTEXT = "outside compiled code"
BEFORE_TRACE = "allocated before the trace"
NO_THREAD = "thread not known"
MAIN_THREAD = "main thread"
ENGINE_THREAD = "autograd engine's thread"
# What the allocator writes where no compiled region ran.
_NO_CONTEXTS = ("", "N/A")
# The first frames of every thread that Python starts, and of the autograd engine's (C++).
_THREAD_FILE = "threading.py"
_ENGINE_FRAME = "torch::autograd::Engine::thread_main"
# The outermost frame of a program that runs in the main thread.
_MAIN_FRAMES = ("<module>", "_run_module_as_main")
Path = tuple[str, ...]
# The group of what is pre-existing, where the trace alone has the names.
_BEFORE = -2


@dataclass(frozen=True, slots=True)
class Level:
    """A number for every allocation, and a function from a number to names, outermost first."""

    group: NDArray[np.integer[Any]]
    path: Callable[[int], Path]


def parse_levels(by: str) -> list[str]:
    """Read the names of levels; raises ValueError for one that there is not, or twice."""
    names = [name.strip() for name in by.split(",")]
    for name in names:
        if name not in LEVELS:
            raise ValueError(f"expected {', '.join(LEVELS)}; got {shortened(name, 60)!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"name each level once; got {by!r}")
    return names


def find_levels(
    analysis: DeviceAnalysis, by: str, *, event: int, all_frames: bool
) -> list[Level]:
    """Return the levels of the tree after an event; raises ValueError for other names."""
    names = parse_levels(by)
    if "line" not in names and "module" not in names:
        names.append("line")
    levels = []
    for name in names:
        if name == "line":
            lines = _lines(analysis, all_frames=all_frames)
            levels.append(Level(analysis.allocations.stack_id, lines))
        elif name == "pool":
            levels.append(_pools(analysis, event))
        else:
            levels.append(_LEVELS[name](analysis))
    return levels


def _modules(analysis: DeviceAnalysis) -> Level:
    names = analysis.modules.names

    def path(group: int) -> Path:
        return _module_path(names[group]) if group >= 0 else (NO_MODULE,)

    return Level(analysis.modules.module_id, path)


def _operations(analysis: DeviceAnalysis) -> Level:
    operations = analysis.operations
    return Level(analysis.operation_id, lambda group: (operations[group] or UNNAMED,))


def _categories(analysis: DeviceAnalysis) -> Level:
    classification = analysis.classification

    def path(group: int) -> Path:
        code, is_likely = divmod(group, 2)
        return (f"{Category(code).label}{' (likely)' if is_likely else ''}",)

    codes = 2 * classification.category.astype(np.int64) + classification.is_likely
    return Level(codes, path)


def _compile_contexts(analysis: DeviceAnalysis) -> Level:
    alloc = analysis.allocations.alloc_event
    column = analysis.device.events.compile_context_id
    texts = analysis.snapshot.texts

    def path(group: int) -> Path:
        if group == _BEFORE:
            return (BEFORE_TRACE,)
        text = texts[group] if group >= 0 else ""
        return (NO_CONTEXT if text in _NO_CONTEXTS else shortened(text, _MOST_OF_NAME),)

    ids = (
        unknown_column(len(alloc), np.int32) if column is None else values_of(column, alloc)
    )
    return Level(np.where(alloc < 0, _BEFORE, ids), path)


def _annotations(analysis: DeviceAnalysis) -> Level:
    alloc = analysis.allocations.alloc_event
    annotations = find_annotation_paths(analysis.snapshot, analysis.device)
    paths = annotations.paths

    def path(group: int) -> Path:
        if group == _BEFORE:
            return (BEFORE_TRACE,)
        names = tuple(shortened(name, _MOST_OF_NAME) for name in paths[group])
        return names or (NO_ANNOTATION,)

    return Level(np.where(alloc < 0, _BEFORE, annotations.at(alloc)), path)


def _pools(analysis: DeviceAnalysis, event: int) -> Level:
    pools = analysis.snapshot.pools
    layout = layout_at(analysis.device, analysis.allocations, event)

    def path(group: int) -> Path:
        return (pool_shown(pools[group] if group >= 0 else None),)

    return Level(pool_ids(analysis, layout), path)


def _streams(analysis: DeviceAnalysis) -> Level:
    return Level(analysis.allocations.stream, lambda stream: (f"stream {stream}",))


def _threads(analysis: DeviceAnalysis) -> Level:
    stacks = analysis.snapshot.stacks
    frames = stacks.frames
    project = analysis.project

    def path(stack: int) -> Path:
        """Name the thread by the outermost frames, the only sign of it that a file has."""
        outermost = stacks.frames_of(stack).tolist()[::-1]
        python = [frame for frame in outermost if is_python(frames.filenames[frame])]
        if not python:
            is_engine = any(
                frames.names[frame].startswith(_ENGINE_FRAME) for frame in outermost
            )
            return (ENGINE_THREAD if is_engine else NO_THREAD,)
        started = [
            frame for frame in python if not frames.filenames[frame].endswith(_THREAD_FILE)
        ]
        if frames.filenames[python[0]].endswith(_THREAD_FILE) and started:
            name = frames.names[started[0]]
            file = project.relative_paths[started[0]][-_MOST_OF_NAME:]
            return (f"thread of {file}: {shortened(name, _MOST_OF_NAME)}",)
        is_main = frames.names[python[0]] in _MAIN_FRAMES
        return (MAIN_THREAD if is_main else NO_THREAD,)

    return Level(analysis.allocations.stack_id, path)


def _sizes(analysis: DeviceAnalysis) -> Level:
    def path(n_bytes: int) -> Path:
        return (f"blocks of {format_bytes(n_bytes)} ({n_bytes} bytes)",)

    return Level(analysis.allocations.block_bytes, path)


def _lines(analysis: DeviceAnalysis, *, all_frames: bool) -> Callable[[int], Path]:
    """Return a function that gives the lines of a stack, outermost first."""
    frames = analysis.snapshot.stacks.frames
    project = analysis.project

    @cache
    def line(frame: int) -> str:
        function = shortened(frames.names[frame], _MOST_OF_NAME)
        path = project.relative_paths[frame]
        number = int(frames.lines[frame])
        if path in UNKNOWN_FILES and not number:
            return function
        # The end of a path says most.
        file = path[-_MOST_OF_NAME:]
        return f"{file}{optional(':{}', number or None)} in {function}"

    def lines(stack: int) -> Path:
        ids = analysis.snapshot.stacks.frames_of(stack).tolist()[::-1]
        shown = [line(frame) for frame in ids if all_frames or project.is_project[frame]]
        return tuple(shown) or (LIBRARY_ONLY if ids else NO_STACK,)

    return lines


def _module_path(name: str) -> Path:
    """Return the modules around a module, and itself.

    They follow from the dots of its path. A module of unknown path has the lines of its calls for a
    name.
    """
    is_of_lines = ".py" in name
    if is_of_lines:
        modules = name.split(WITHIN)[::-1]
    else:
        modules = list(accumulate(name.split(".", _MOST_OF_MODULES), "{}.{}".format))
    return tuple(shortened(module, _MOST_OF_NAME) for module in modules)


_LEVELS: dict[str, Callable[[DeviceAnalysis], Level]] = {
    "module": _modules,
    "operation": _operations,
    "category": _categories,
    "compile-context": _compile_contexts,
    "annotation": _annotations,
    "stream": _streams,
    "thread": _threads,
    "size": _sizes,
}
LEVELS = ("line", *_LEVELS, "pool")
