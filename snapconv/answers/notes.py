"""Notes on a valid file that a reader of its answers should know, in the order of the analysis.

One suggests an ``--include`` for more lines, where one or two lines of the project have most of the peak: a
program that passes its model to a library has one line, ``trainer.train()``. The lines of the package that
defines the model tell its layers apart.
"""

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.growth import Growth, find_growth, growth_notes
from snapconv.classification.categories import Category
from snapconv.classification.decisions import LIKELY_ONLY
from snapconv.classification.user_rules import rule_notes
from snapconv.columns import BoolColumn, Int64Column, sums_by
from snapconv.notes import Note
from snapconv.replay.history_verdict import Verdict
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import installed_part, is_generated, is_library, is_python, normal
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_roles import innermost_frames
from snapconv.units import counted, format_bytes, format_share


def device_notes(analysis: DeviceAnalysis, growth: Sequence[Growth] | None = None) -> tuple[Note, ...]:
    """Return what to know about a device and its file; ``growth`` is what grows, if known already."""
    return tuple(_notes(analysis, find_growth(analysis) if growth is None else growth))


def file_notes(analysis: Analysis) -> tuple[Note, ...]:
    """Return the notes of all devices, each once."""
    return tuple(dict.fromkeys(note for device in analysis.devices for note in device_notes(device)))


def main_notes(analysis: Analysis) -> tuple[Note, ...]:
    """Return the notes that change what to believe of an answer, each once."""
    every = dict.fromkeys(note for device in analysis.devices for note in device_notes(device, ()))
    return tuple(note for note in every if not note.is_minor)


def _notes(found: DeviceAnalysis, growth: Sequence[Growth]) -> Iterator[Note]:
    project = found.project
    ordinal, history, weights = found.device.device, found.history, found.weights
    yield from found.snapshot.notes
    yield from found.replay.notes
    if history.verdict is Verdict.TRUNCATED:
        yield Note(
            "truncated-history",
            f"{history.reason}: the true peak may be in what is lost; record with a larger max_entries",
            ordinal,
        )
    if len(found.snapshot.stacks.frames) and not project.is_project.any():
        yield Note("no-project-frames", _why_no_project(project))
    if weights.n_unmatched_gradients:
        yield Note(
            "unmatched-gradients",
            f"{counted(weights.n_unmatched_gradients, 'gradient')} at the peak could not be matched to "
            "a weight",
            ordinal,
            is_minor=True,
        )
    yield from _category_notes(found)
    if project.unused_includes:
        names = ", ".join(project.unused_includes)
        yield Note(
            "unused-include",
            f"no frame is in {names}: --include names a package as it is imported, or a folder as the "
            "file has it",
        )
    if not found.device.is_host:
        yield from _dominant_lines_note(found)
    yield from growth_notes(found, growth)
    yield from rule_notes(found.features.user_rules)


def _category_notes(found: DeviceAnalysis) -> Iterator[Note]:
    """Say what the categories lack, or of pinned host memory the sizes."""
    if found.device.is_host:
        yield Note(
            "host-sizes",
            "pinned host memory is recorded with the sizes of its blocks, mostly powers of two: what was "
            "requested is not in the file, so requested bytes are block bytes",
            found.device.device,
            is_minor=True,
        )
        return
    live = found.allocations.live_at(found.peak_event)
    is_unknown = found.classification.category == Category.UNKNOWN
    unknown = int(found.allocations.block_bytes[live & is_unknown].sum())
    by_choice = LIKELY_ONLY in found.classification.reasons
    if unknown > found.replay.allocated.peak // 20 and not by_choice:
        yield Note(
            "much-unknown",
            f"{format_bytes(unknown)} of the {'peak' if len(found.device.events) else 'dump'} could not be "
            f"classified; {_better_recording(found)}"
            "give its lines a category with --rules FILE",
            found.device.device,
            is_minor=True,
        )


def _better_recording(found: DeviceAnalysis) -> str:
    """Say what a better recording would have, as far as this one lacks it; empty for one of ours."""
    if found.history.verdict is Verdict.NO_TRACE:
        return "the file has no events: record them with `snapconv record`, or "
    if found.history.verdict is not Verdict.COMPLETE:
        return "record from the start of the program, or "
    if found.recorded is not None:
        return ""
    return "record it with `snapconv record`, which notes what memory is for, or "


def _why_no_project(project: Project) -> str:
    """Name the folder without files, and the one to try."""
    if project.is_inferred:
        return "all Python frames are of installed packages: count one of them with --include"
    if project.seen_root is None:
        return f"nothing is under {project.root}: all Python frames are of installed packages"
    return f"nothing is under {project.root}: the program's own files are under {project.seen_root}"


_MOST_LINES = 2
# Of the bytes at the peak: the least share of these lines for a note, and of the package.
_MOST, _LEAST_GAIN = 0.5, 0.125
# The packages with most bytes; each costs a pass over all frames.
_MOST_TRIED = 8
# Their frames are in every stack, and distinguish operations, not layers.
_NEVER = ("torch", "functorch", "triton")


def _dominant_lines_note(found: DeviceAnalysis) -> Iterator[Note]:
    stacks, is_project, allocations = found.snapshot.stacks, found.project.is_project, found.allocations
    live = allocations.live_at(found.peak_event)
    has_stack, total = live & (allocations.stack_id >= 0), int(allocations.block_bytes[live].sum())
    of_stack = sums_by(allocations.stack_id[has_stack], allocations.block_bytes[has_stack], len(stacks))
    lines, before = _largest_lines(stacks, is_project, of_stack)
    is_library_already = any(installed_part(normal(stacks.frames.filenames[line])) for line in lines)
    if before <= _MOST * total or is_library_already:
        return
    gains = {
        package: before - _largest_lines(stacks, is_project | frames, of_stack)[1]
        for package, frames in _packages(stacks, is_project, of_stack)
    }
    # The package within a package, if it has half the effect: models, without their helpers.
    least = max(_LEAST_GAIN * total, max(gains.values(), default=0) / 2)
    enough = [package for package, gain in gains.items() if gain >= least]
    if enough:
        where = "one line" if len(lines) == 1 else "two lines"
        narrowest = max(enough, key=lambda package: package.count("/"))
        yield Note(
            "dominant-lines",
            f"{format_share(before, total)} of the peak is on {where} of the project that calls a "
            f"library: --include {narrowest} counts its lines too",
            found.device.device,
        )


def _largest_lines(
    stacks: StackTable, is_project: BoolColumn, of_stack: Int64Column
) -> tuple[list[int], int]:
    """Return the frames whose lines have most bytes, and the bytes on them together."""
    frame = innermost_frames(stacks, is_project)
    on_line = frame >= 0
    per_frame = sums_by(frame[on_line], of_stack[on_line], len(stacks.frames))
    largest = np.argsort(-per_frame, kind="stable")[:_MOST_LINES]
    largest = largest[per_frame[largest] > 0]
    return largest.tolist(), int(per_frame[largest].sum())


def _packages(
    stacks: StackTable, is_project: BoolColumn, of_stack: Int64Column
) -> Iterator[tuple[str, BoolColumn]]:
    """Yield the packages in these stacks with their frames, most bytes first."""
    # Recursion counts the bytes of a stack again, good enough for an order.
    of_places = np.repeat(of_stack, np.diff(stacks.offsets))
    per_frame = sums_by(stacks.frame_ids, of_places, len(stacks.frames))
    frames_of: dict[str, list[int]] = defaultdict(list)
    for frame in np.flatnonzero((per_frame > 0) & ~is_project).tolist():
        for package in _packages_of(normal(stacks.frames.filenames[frame])):
            frames_of[package].append(frame)
    most = {package: int(per_frame[frames].max()) for package, frames in frames_of.items()}
    for package in sorted(frames_of, key=lambda package: (-most[package], package))[:_MOST_TRIED]:
        mark = np.zeros(len(stacks.frames), np.bool_)
        mark[frames_of[package]] = True
        yield package, mark


def _packages_of(path: str) -> Sequence[str]:
    """Return the names for ``--include`` that make a file count: its package, and the package in that."""
    if not is_python(path) or is_generated(path) or path.startswith("<"):
        return ()
    if not is_library(path):  # excluded by the given project root
        return (posixpath.dirname(path),)
    folders = (installed_part(path) or "").split("/")[:-1]
    if not folders or folders[0] in _NEVER or "-packages/" not in path:
        return ()
    return ["/".join(folders[:depth]) for depth in (1, 2) if depth <= len(folders)]
