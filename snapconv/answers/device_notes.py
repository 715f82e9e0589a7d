"""Notes: what the format allows and the reader of an answer should know, in the order of the analysis."""

from collections.abc import Iterator

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.dominant_lines import dominant_lines_note
from snapconv.answers.growth import find_growth, growth_notes
from snapconv.classification.categories import Category
from snapconv.classification.rules.of_unknown import PERSISTENT
from snapconv.classification.size_splits import GRADIENT_OR_STATE
from snapconv.classification.user_rules import rule_notes
from snapconv.columns import BoolColumn
from snapconv.notes import Note
from snapconv.phases.trace_phases import Phases
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.project_frames import Project
from snapconv.units import format_bytes

# What is said of memory whose purpose is not known, by the reason of the rule that knows so much.
_KNOWN_OF_UNKNOWN = {
    GRADIENT_OR_STATE.slug: "gradients and optimizer states of equal sizes",
    PERSISTENT.slug: "persistent since before the recording",
}


def device_notes(analysis: DeviceAnalysis) -> tuple[Note, ...]:
    """Return what a user should know about a device of a file, and about the file."""
    return tuple(_notes(analysis))


def file_notes(analysis: Analysis) -> tuple[Note, ...]:
    """Return the notes of all devices, each once."""
    return tuple(dict.fromkeys(note for device in analysis.devices for note in device_notes(device)))


def _notes(found: DeviceAnalysis) -> Iterator[Note]:
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
            f"{weights.n_unmatched_gradients} gradients live at the peak have the size of no unmatched "
            "weight, so they are in no weight's row",
            ordinal,
        )
    yield from _category_notes(found)
    if project.unused_includes:
        yield Note("unused-include", _no_such_frames(project))
    if not found.device.is_host:
        live = found.allocations.live_at(found.peak_event)
        yield from dominant_lines_note(found.snapshot.stacks, project, found.allocations, live, ordinal)
    yield from growth_notes(found, find_growth(found))
    # Notes about --params and --rules.
    yield from _list_notes(found, ordinal)
    yield from rule_notes(found.user_rules, free_sites_known=found.phases.free_sites_known)


def _category_notes(found: DeviceAnalysis) -> Iterator[Note]:
    """What the categories lack, or of pinned host memory the sizes."""
    if found.device.is_host:
        yield Note(
            "host-sizes",
            "pinned host memory is recorded with the sizes of its blocks, mostly powers of two: what was "
            "requested is not in the file, so requested bytes are block bytes",
            found.device.device,
        )
        return
    live = found.allocations.live_at(found.peak_event)
    is_unknown = found.classification.category == Category.UNKNOWN
    unknown = int(found.allocations.block_bytes[live & is_unknown].sum())
    if unknown > found.replay.allocated.peak // 20:
        yield Note(
            "much-unknown",
            f"{format_bytes(unknown)} of the peak could not be classified{_of_it_known(found, live)}; "
            f"{_better_recording(found)}"
            "name the code that made them with --rules",
            found.device.device,
        )


def _of_it_known(found: DeviceAnalysis, live: BoolColumn) -> str:
    """Say what is known of how much of what is unknown; empty for nothing."""
    reasons, parts = found.classification.reasons, []
    for reason, words in _KNOWN_OF_UNKNOWN.items():
        if reason in reasons:
            rows = live & (found.classification.reason_id == reasons.index(reason))
            n_bytes = int(found.allocations.block_bytes[rows].sum())
            sums = _both_sums(found.phases, n_bytes) if reason == GRADIENT_OR_STATE.slug else ""
            parts += [f", {format_bytes(n_bytes)} of it {words}{sums}"] if n_bytes else []
    return "".join(parts)


def _both_sums(phases: Phases, n_bytes: int) -> str:
    """How much of them the gradients are, and the states: known where every parameter has as many states."""
    if not phases.n_states or phases.has_several_steps:
        return ""
    gradients = n_bytes // (1 + phases.n_states)
    return f" ({format_bytes(gradients)} gradients, {format_bytes(n_bytes - gradients)} states)"


def _better_recording(found: DeviceAnalysis) -> str:
    """Say what a better recording would have, as far as this one lacks it; empty for one of ours."""
    if found.history.verdict is not Verdict.COMPLETE:
        return "record from the start of the program, or "
    if found.recorded is not None:
        return ""
    return "record it with `snapconv record`, which notes what memory is for, or "


def _no_such_frames(project: Project) -> str:
    """Show what of --include has no effect here."""
    return (
        f"no frame is in {', '.join(project.unused_includes)}: --include names a package as it is "
        "imported, or a folder as the file has it"
    )


def _why_no_project(project: Project) -> str:
    """Name the folder without files, and the one to try."""
    if project.is_inferred:
        return "all Python frames are of installed packages: count one of them with --include"
    if project.seen_root is None:
        return f"nothing is under {project.root}: all Python frames are of installed packages"
    return f"nothing is under {project.root}: the program's own files are under {project.seen_root}"


def _list_notes(found: DeviceAnalysis, ordinal: int) -> Iterator[Note]:
    params = found.params
    if not params:
        return
    from snapconv.naming.param_names import naming_notes, unused_list_note

    if found.naming:
        yield from naming_notes(found.naming, params, ordinal)
    elif found.recorded:
        yield unused_list_note(params, found.recorded.metadata.parameters, ordinal)
