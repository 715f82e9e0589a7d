"""Notes on a valid file that a reader of its answers should know, in the order of the analysis."""

from collections.abc import Iterator, Sequence

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.growth import Growth, find_growth, growth_notes
from snapconv.classification.categories import Category
from snapconv.classification.decisions import LIKELY_ONLY
from snapconv.classification.user_rules import rule_notes
from snapconv.notes import Note
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.project_frames import Project
from snapconv.units import counted, format_bytes


def device_notes(
    analysis: DeviceAnalysis, growth: Sequence[Growth] | None = None
) -> tuple[Note, ...]:
    """Return what to know about a device and its file; ``growth`` is what grows, if known already."""
    return tuple(_notes(analysis, find_growth(analysis) if growth is None else growth))


def file_notes(analysis: Analysis) -> tuple[Note, ...]:
    """Return the notes of all devices, each once."""
    return tuple(
        dict.fromkeys(note for device in analysis.devices for note in device_notes(device))
    )


def main_notes(analysis: Analysis) -> tuple[Note, ...]:
    """Return the notes that change what to believe of an answer, each once."""
    every = dict.fromkeys(note for device in analysis.devices for note in device_notes(device, ()))
    return tuple(note for note in every if not note.is_minor)


def _notes(found: DeviceAnalysis, growth: Sequence[Growth]) -> Iterator[Note]:
    project = found.project
    ordinal = found.device.device
    history = found.history
    weights = found.weights
    yield from found.snapshot.notes
    yield from found.replay.notes
    if history.verdict is Verdict.TRUNCATED:
        yield Note(
            "truncated-history",
            f"{history.reason}: the true peak may be in what is lost; record with a larger "
            f"max_entries",
            ordinal,
        )
    if len(found.snapshot.stacks.frames) and not project.is_project.any():
        yield Note("no-project-frames", _why_no_project(project))
    if weights.n_unmatched_gradients:
        yield Note(
            "unmatched-gradients",
            f"{counted(weights.n_unmatched_gradients, 'gradient')} at the peak could not be "
            f"matched to "
            "a weight",
            ordinal,
            is_minor=True,
        )
    yield from _category_notes(found)
    if project.unused_includes:
        names = ", ".join(project.unused_includes)
        yield Note(
            "unused-include",
            f"no frame is in {names}: pass a package's import name, or a folder as recorded in "
            f"the file, "
            "to --include",
        )
    yield from growth_notes(found, growth)
    yield from rule_notes(found.features.user_rules)


def _category_notes(found: DeviceAnalysis) -> Iterator[Note]:
    """Say what the categories lack, or of pinned host memory the sizes."""
    if found.device.is_host:
        yield Note(
            "host-sizes",
            "pinned host memory is recorded with the sizes of its blocks, mostly powers of two: "
            "what was "
            "requested is not in the file, so requested bytes are block bytes",
            found.device.device,
            is_minor=True,
        )
        return
    live = found.live_at_peak
    is_unknown = found.classification.category == Category.UNKNOWN
    unknown = found.allocations.bytes_of(live & is_unknown)
    by_choice = LIKELY_ONLY in found.classification.reasons
    if unknown > found.replay.allocated.peak // 20 and not by_choice:
        yield Note(
            "much-unknown",
            f"{format_bytes(unknown)} of the {'peak' if found.n_events else 'dump'} could not be "
            f"classified; {_better_recording(found)}"
            "give its lines a category with --rules FILE",
            found.device.device,
            is_minor=True,
        )


def _better_recording(found: DeviceAnalysis) -> str:
    """Say what a better recording would have, as far as this one lacks it; empty for one of ours."""
    is_recorded = found.snapshot.backend.is_recorded
    if found.history.verdict is Verdict.NO_TRACE:
        how = "with `snapconv record`" if is_recorded else "too"
        return f"the file has no events: record them {how}, or "
    if found.history.verdict is not Verdict.COMPLETE:
        return "record from the start of the program, or "
    if found.recorded is not None or not is_recorded:
        return ""
    return "record it with `snapconv record`, which notes what memory is for, or "


def _why_no_project(project: Project) -> str:
    """Name the folder without files, and the one to try."""
    if project.is_inferred:
        return "all Python frames are of installed packages: count one of them with --include"
    if project.seen_root is None:
        return f"nothing is under {project.root}: all Python frames are of installed packages"
    return f"nothing is under {project.root}: the program's own files are under {project.seen_root}"
