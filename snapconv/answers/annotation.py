"""Memory by source line: what is live at a moment, kept for backward, and allocated in all.

An allocation counts for the project's line nearest to it, as in every answer. Where source files
are at hand, a line has its text and its number today. Findings of ``advise`` stand at their lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.findings import Finding, advise
from snapconv.answers.moments import FoundMoment
from snapconv.answers.peak import NOTHING, sums_by_name
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, has_code, rows_of
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, SourceLine, line_values
from snapconv.stacks.source_files import SourceFolder, SourceText
from snapconv.units import Device

# Lines of the text, and the least part of the memory for one of them.
N_LINES, LEAST_SHARE = 10, 0.01
# As in DeviceAnalysis.project_frame.
_LIBRARY_FRAME, _NO_STACK = -1, -2


@dataclass(frozen=True, slots=True)
class AnnotatedLine:
    """A line as recorded, with its bytes; ``findings`` are numbers in the answer's, from 1.

    ``current_line`` is its number in the source at hand, None where it is not there or was not
    recognised. ``text`` is that of the source, or else that of the recording.
    """

    line: int
    function: str
    current_line: int | None
    text: str | None
    live_bytes: int
    kept_for_backward_bytes: int
    allocated_bytes: int
    n_live: int
    n_allocations: int
    findings: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AnnotatedFile:
    """A file of the project, its lines, largest first, and the ``source`` that shows them.

    ``recorded_path`` is the file's path in the recording.
    """

    path: str
    recorded_path: str
    source: SourceText | None
    lines: tuple[AnnotatedLine, ...]

    def total(self, name: str) -> int:
        """Return the sum of a figure of the lines."""
        return sum(getattr(line, name) for line in self.lines)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, without the text of the whole file."""
        return {
            "path": self.path,
            "recorded_path": self.recorded_path,
            "source": None if self.source is None else self.source.path,
            "live_bytes": self.total("live_bytes"),
            "kept_for_backward_bytes": self.total("kept_for_backward_bytes"),
            "allocated_bytes": self.total("allocated_bytes"),
            "lines": [asdict(line) for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class LineCallers:
    """A line that allocates for others, and the bytes that each of these has by it, most first."""

    line: SourceLine
    callers: tuple[tuple[SourceLine, int], ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        callers = [
            {**line_values(line), "live_bytes": n_bytes} for line, n_bytes in self.callers
        ]
        return {**line_values(self.line), "callers": callers}


@dataclass(frozen=True, slots=True)
class Annotation:
    """The project's files with the bytes of their lines, the file with most live bytes first.

    ``callers`` are those of a line that has most of the memory for several others.
    ``findings`` are faults, and changes at no cost. ``source_folder`` is where source was looked
    for; ``has_recorded_source``: the recording has source too.
    """

    device: Device
    moment: str
    event: int | None
    allocated_bytes: int
    library_bytes: int
    no_stack_bytes: int
    project_root: str | None
    source_folder: str
    has_recorded_source: bool
    files: tuple[AnnotatedFile, ...]
    findings: tuple[Finding, ...]
    callers: LineCallers | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        findings = []
        for finding in self.findings:
            findings.append(
                {
                    "kind": finding.kind,
                    "sort": finding.sort,
                    "what": finding.what,
                    "how": finding.how,
                    "held_bytes": finding.held_bytes,
                    "saved_bytes": finding.saved_bytes,
                    "is_certain": finding.is_certain,
                    **line_values(finding.where or finding.line),
                }
            )
        return {
            "moment": self.moment,
            "event": self.event,
            "allocated_bytes": self.allocated_bytes,
            "library_bytes": self.library_bytes,
            "no_stack_bytes": self.no_stack_bytes,
            "project_root": self.project_root,
            "source_folder": self.source_folder,
            "has_recorded_source": self.has_recorded_source,
            "files": [file.to_json() for file in self.files],
            "findings": findings,
            "most_called": None if self.callers is None else self.callers.to_json(),
        }


def annotate(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    folder: SourceFolder,
    *,
    includes_callers: bool = False,
) -> Annotation:
    """Sum the memory of a device by source line, and look the lines up in a folder.

    ``includes_callers`` adds the lines that only call others that allocate, without bytes.
    """
    live = analysis.allocations.live_at(moment.event)
    findings = advise(analysis).findings
    callers = _project_lines(analysis) if includes_callers else ()
    lines = _lines_by_file(analysis, live, findings, callers)
    recorded_paths = _recorded_paths(analysis)
    recorded_source = analysis.snapshot.recorded_source
    files = []
    for path, file_lines in lines.items():
        recorded_path = recorded_paths.get(path, path)
        recorded = None
        if recorded_path in recorded_source:
            recorded = SourceText("", tuple(recorded_source[recorded_path]))
        files.append(_annotated(path, recorded_path, file_lines, recorded, folder))
    frames = analysis.project_frame
    bytes_of = analysis.allocations.bytes_of
    return Annotation(
        device=analysis.device.device,
        moment=moment.name,
        event=analysis.file_event(moment.event),
        allocated_bytes=bytes_of(live),
        library_bytes=bytes_of(live & (frames == _LIBRARY_FRAME)),
        no_stack_bytes=bytes_of(live & (frames == _NO_STACK)),
        project_root=analysis.project.root,
        source_folder=folder.name,
        has_recorded_source=bool(recorded_source),
        files=tuple(sorted(files, key=_hottest_first)),
        findings=tuple(findings),
        callers=_main_callers(analysis, live),
    )


def _main_callers(analysis: DeviceAnalysis, live: BoolColumn) -> LineCallers | None:
    """Return the callers of the line that has more than half of the live bytes.

    They are the nearest lines at which calls differ; None where there is no such line, or all its
    memory comes by one way.
    """
    frames = analysis.project_frame
    line_of = analysis.lines.of_frame
    total = analysis.allocations.bytes_of(live)
    for line, line_sum in sums_by_name(
        analysis, live & (frames >= 0), line_of, frames
    ).items():
        if line is not None and 2 * line_sum.block_bytes > total:
            distinct_frames = np.unique(frames[live]).tolist()
            line_frames = [frame for frame in distinct_frames if line_of(frame) == line]
            callers = _callers(analysis, live & np.isin(frames, line_frames))
            return LineCallers(line, callers) if callers else None
    return None


def _callers(
    analysis: DeviceAnalysis, rows: BoolColumn
) -> tuple[tuple[SourceLine, int], ...]:
    """Return the nearest lines at which the calls to a line differ, with their bytes."""
    for depth in range(1, MAX_LINES_OF_AN_END):

        def caller(stack: int, depth: int = depth) -> SourceLine | None:
            return next(iter(analysis.lines.of(stack)[depth:]), None)

        sums = sums_by_name(analysis, rows, caller, analysis.allocations.stack_id)
        callers = [
            (line, item.block_bytes) for line, item in sums.items() if line is not None
        ]
        if len(callers) < len(sums) or not callers:
            break
        if len(callers) > 1:
            return tuple(sorted(callers, key=lambda item: (-item[1], item[0])))
    return ()


def _hottest_first(file: AnnotatedFile) -> tuple[int, int, str]:
    return -file.total("live_bytes"), -file.total("allocated_bytes"), file.path


def lines_that_count(annotation: Annotation, n_most: int | None) -> set[tuple[str, int]]:
    """Return the lines that people look at first: those with most live bytes, and with findings.

    Each is the path of its file and its recorded number.
    """
    least_bytes = LEAST_SHARE * annotation.allocated_bytes if n_most is None else 1
    lines = []
    for file in annotation.files:
        for line in file.lines:
            if line.findings or line.live_bytes >= max(least_bytes, 1):
                rank = (not line.findings, -line.live_bytes, file.path, line.line)
                lines.append((rank, (file.path, line.line)))
    return {place for _, place in sorted(lines)[: N_LINES if n_most is None else n_most]}


def _recorded_paths(analysis: DeviceAnalysis) -> dict[str, str]:
    """Return the paths in the recording by those that reports show."""
    filenames = analysis.snapshot.stacks.frames.filenames
    shown_paths = analysis.project.relative_paths
    is_project = analysis.project.is_project
    return {shown_paths[i]: filenames[i] for i in rows_of(is_project).tolist()}


def _project_lines(analysis: DeviceAnalysis) -> Iterator[SourceLine]:
    """Yield the project's lines of all stacks."""
    for frame in rows_of(analysis.project.is_project).tolist():
        line = analysis.lines.of_frame(frame)
        if line is not None:
            yield line


def _lines_by_file(
    analysis: DeviceAnalysis,
    live: BoolColumn,
    findings: Sequence[Finding],
    callers: Iterable[SourceLine],
) -> dict[str, list[AnnotatedLine]]:
    """Return the lines that allocated, that a finding is about, and the callers, by file."""
    findings_of: dict[SourceLine, list[int]] = {}
    for number, finding in enumerate(findings, 1):
        line = finding.where or finding.line
        if line is not None:
            findings_of.setdefault(line, []).append(number)
    frames = analysis.project_frame
    is_project = frames >= 0
    is_kept = live & has_code(analysis.classification.category, Category.ACTIVATION)
    line_of = analysis.lines.of_frame
    all_sums = sums_by_name(analysis, is_project, line_of, frames)
    live_sums = sums_by_name(analysis, is_project & live, line_of, frames)
    kept_sums = sums_by_name(analysis, is_project & is_kept, line_of, frames)
    lines: dict[str, list[AnnotatedLine]] = {}
    for line in dict.fromkeys((*all_sums, *findings_of, *callers)):
        if line is None:
            continue
        live_sum = live_sums.get(line, NOTHING)
        total = all_sums.get(line, NOTHING)
        annotated = AnnotatedLine(
            line=line.line_number,
            function=line.function,
            current_line=None,
            text=None,
            live_bytes=live_sum.block_bytes,
            kept_for_backward_bytes=kept_sums.get(line, NOTHING).block_bytes,
            allocated_bytes=total.block_bytes,
            n_live=live_sum.n_allocations,
            n_allocations=total.n_allocations,
            findings=tuple(findings_of.get(line, ())),
        )
        lines.setdefault(line.file_path, []).append(annotated)
    return lines


def _annotated(
    path: str,
    recorded_path: str,
    lines: Sequence[AnnotatedLine],
    recorded: SourceText | None,
    folder: SourceFolder,
) -> AnnotatedFile:
    """Look up the lines of a file in the folder, or else in what the recording has of it.

    A file of the folder in which no line is recognised is another one.
    """
    texts: dict[int, str | None] = {}
    if recorded is not None:
        texts = {line.line: recorded.line_text(line.line) for line in lines}
    for source in folder.candidates(recorded_path):
        current_lines = _located(source, lines, texts)
        if any(line.current_line for line in current_lines):
            return AnnotatedFile(path, recorded_path, source, current_lines)
    if recorded is None:
        return AnnotatedFile(
            path, recorded_path, None, tuple(sorted(lines, key=_most_first))
        )
    return AnnotatedFile(path, recorded_path, recorded, _located(recorded, lines, texts))


def _located(
    source: SourceText, lines: Iterable[AnnotatedLine], texts: Mapping[int, str | None]
) -> tuple[AnnotatedLine, ...]:
    located = []
    for line in lines:
        text = texts.get(line.line)
        number = source.current_line(line.line, line.function, text)
        if number is not None:
            text = source.line_text(number)
        located.append(replace(line, current_line=number, text=text or None))
    return tuple(sorted(located, key=_most_first))


def _most_first(line: AnnotatedLine) -> tuple[int, int, int, str]:
    return -line.live_bytes, -line.allocated_bytes, line.line, line.function
