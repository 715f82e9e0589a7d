"""Notes on a valid file that a reader of its answers should know, in the order of the analysis."""

from collections.abc import Iterator, Sequence

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.growth import Growth, find_growth, growth_notes
from snapconv.classification.categories import Category
from snapconv.classification.decisions import LIKELY_ONLY
from snapconv.classification.user_rules import rule_notes
from snapconv.notes import Note
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.paths import is_python
from snapconv.stacks.project_frames import Project
from snapconv.units import counted, format_bytes


def device_notes(
    analysis: DeviceAnalysis, growth: Sequence[Growth] | None = None
) -> tuple[Note, ...]:
    """Return the notes on a device and its file; ``growth`` is given where it is known already."""
    if growth is None:
        growth = find_growth(analysis)
    return tuple(_notes(analysis, growth))


def file_notes(
    analysis: Analysis, growth: Sequence[Growth] | None = None
) -> tuple[Note, ...]:
    """Return the notes of all devices, each once."""
    notes: list[Note] = []
    for device in analysis.devices:
        notes += device_notes(device, growth)
    return tuple(dict.fromkeys(notes))


def main_notes(analysis: Analysis) -> tuple[Note, ...]:
    """Return the notes that change what to believe of an answer, each once; growth does not."""
    return tuple(note for note in file_notes(analysis, ()) if not note.is_minor)


def _notes(analysis: DeviceAnalysis, growth: Sequence[Growth]) -> Iterator[Note]:
    project = analysis.project
    ordinal = analysis.device.device
    history = analysis.history
    weights = analysis.weights
    yield from analysis.snapshot.notes
    yield from analysis.replay.notes
    if history.verdict is Verdict.TRUNCATED:
        yield Note(
            "truncated-history",
            f"{history.reason}: the true peak may be in what is lost; record with a "
            f"larger max_entries",
            ordinal,
        )
    if len(analysis.snapshot.stacks.frames) and not project.is_project.any():
        has_python = bool(analysis.snapshot.stacks.frames.mark_files(is_python).any())
        reason = _why_no_project(project) if has_python else _NO_PYTHON
        yield Note("no-project-frames", reason)
    if weights.n_unmatched_gradients:
        yield Note(
            "unmatched-gradients",
            f"{counted(weights.n_unmatched_gradients, 'gradient')} at the peak could not be "
            "matched to a weight",
            ordinal,
            is_minor=True,
        )
    yield from _category_notes(analysis)
    if project.unused_includes:
        names = ", ".join(project.unused_includes)
        yield Note(
            "unused-include",
            f"no frame is in {names}: pass a package's import name, or a folder as recorded in "
            "the file, to --include",
        )
    yield from growth_notes(analysis, growth)
    yield from rule_notes(analysis.features.user_rules)


# More unknown memory than the peak divided by this is a note.
_MUCH_UNKNOWN = 20


def _category_notes(analysis: DeviceAnalysis) -> Iterator[Note]:
    """Say what the categories lack, or of pinned host memory the sizes."""
    if analysis.device.is_host:
        yield Note(
            "host-sizes",
            "pinned host memory is recorded with the sizes of its blocks, mostly powers of two: "
            "what was requested is not in the file, so requested bytes are block bytes",
            analysis.device.device,
            is_minor=True,
        )
        return
    is_unknown = analysis.classification.category == Category.UNKNOWN
    unknown = analysis.allocations.bytes_of(analysis.live_at_peak & is_unknown)
    is_choice = LIKELY_ONLY in analysis.classification.reasons
    if unknown > analysis.replay.allocated.peak // _MUCH_UNKNOWN and not is_choice:
        moment = "peak" if analysis.n_events else "dump"
        yield Note(
            "much-unknown",
            f"{format_bytes(unknown)} of the {moment} could not be classified; "
            f"{_better_recording(analysis)}give its lines a category with --rules FILE",
            analysis.device.device,
            is_minor=True,
        )


def _better_recording(analysis: DeviceAnalysis) -> str:
    """Say how to record a better file, if this one lacks anything; empty for one of ours."""
    is_recorded = analysis.snapshot.backend.is_recorded
    if analysis.history.verdict is Verdict.NO_TRACE:
        addition = "with `snapconv record`" if is_recorded else "too"
        return f"the file has no events: record them {addition}, or "
    if analysis.history.verdict is not Verdict.COMPLETE:
        return "record from the start of the program, or "
    if analysis.recorded is not None or not is_recorded:
        return ""
    return "record it with `snapconv record`, which notes what memory is for, or "


_NO_PYTHON = "no stack has a Python frame: operations are known, and no lines"


def _why_no_project(project: Project) -> str:
    """Name the folder without files, and the one to try."""
    if project.is_inferred:
        return (
            "all Python frames are of installed packages: count one of them with --include"
        )
    if project.seen_root is None:
        return (
            f"nothing is under {project.root}: all Python frames are of installed packages"
        )
    return f"nothing is under {project.root}: the program's own files are under {project.seen_root}"
