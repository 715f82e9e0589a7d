"""Lines of text for ``snapconv ranks``: differences first, then groups, then a line each rank."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from snapconv.answers.ranks.job_report import JobReport, Kind
from snapconv.answers.ranks.rank_file import RankFile
from snapconv.units import counted, format_bytes, optional
from snapconv.writers.text.size_rows import next_line

N_ROWS = 16
# The text shows so many of every list of findings; --json and the database have all.
_MOST_FINDINGS = 10
_MOST_NAMES = 4
_TITLES = {
    Kind.OUT_OF_MEMORY: "ran out of memory",
    Kind.OUTLIER: "different from their group",
    Kind.IMBALANCE: "unequal",
    Kind.GROWTH: "grew from dump to dump",
    Kind.FAULT: "kept for nothing (snapconv advise FILE has the change)",
}


def job_lines(report: JobReport, *, n_rows: int | None = None) -> Iterator[str]:
    """Show what was found in a job."""
    yield _head(report)
    for kind, title in _TITLES.items():
        yield from _section(title, [finding.sentence for finding in report.select(kind)])
    yield from _section("not read", [_unread(file) for file in report.errors])
    yield from _group_lines(report)
    yield from _axis_lines(report)
    yield from _rank_lines(report, n_rows or N_ROWS)
    for hint in report.select(Kind.HINT):
        yield f"  {hint.sentence}"
    yield from _next_lines(report)


def _unread(file: RankFile) -> str:
    """Name a file once: most errors do, and not by its rank."""
    error = file.error or ""
    return error if file.name in error else f"{file.name}: {error}"


def _head(report: JobReport) -> str:
    ranks = report.last_dumps
    peaks = [
        device.peak_bytes for file in ranks if (device := file.main_device) is not None
    ]
    lacking = optional("; {}", report.lacking)
    spread = ""
    if peaks:
        smallest = format_bytes(min(peaks))
        largest = format_bytes(max(peaks))
        spread = f"; peak {largest}"
        if smallest != largest:
            spread = f"; peaks {smallest} to {largest}"
    return f"{counted(len(ranks), 'rank')} in {counted(report.n_files, 'file')}{lacking}{spread}"


def _section(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if not sentences:
        return
    yield f"  {title}"
    for sentence in sentences[:_MOST_FINDINGS]:
        yield f"    {sentence}"
    if len(sentences) > _MOST_FINDINGS:
        yield f"    and {len(sentences) - _MOST_FINDINGS} more"


def _group_lines(report: JobReport) -> Iterator[str]:
    if len(report.groups) < 2:
        return
    yield "  groups"
    for group in report.groups:
        head = f"    {group.name or 'other':<12}{counted(group.n_ranks, 'rank'):>12}"
        spread = f"{format_bytes(group.least_bytes)} to {format_bytes(group.most_bytes)}"
        yield f"{head}  median {format_bytes(group.median_bytes)}, {spread}"


def _axis_lines(report: JobReport) -> Iterator[str]:
    if not report.axes:
        return
    yield "  axes of the mesh (each between ranks that are equal on the others)"
    width = max(len(axis.name) for axis in report.axes)
    for axis in report.axes:
        yield f"    {axis.name:<{width}}  {axis.n_coordinates:>5}  {axis.sentence}"


def _rank_lines(report: JobReport, n_rows: int) -> Iterator[str]:
    """Show a line for each rank, or for equal ranks: remarkable ones first, then by peak."""
    rows = _rank_rows(report)
    if not rows:
        return
    width = max(4, *(len(ranks) for ranks, _, _ in rows[:n_rows]))
    yield f"  {'rank':<{width}}  device         peak     reserved  most of it"
    for ranks, device, figures in rows[:n_rows]:
        yield f"  {ranks:<{width}}  {device:<8}{figures}"
    if len(rows) > n_rows:
        n_hidden = counted(len(rows) - n_rows, "more row")
        yield f"  and {n_hidden}: --top {len(rows)}, --json or -o OUT.sqlite"


def _rank_rows(report: JobReport) -> list[tuple[str, str, str]]:
    """Return the names, device and figures of ranks; ranks whose figures are equal share a row."""
    kinds = list(Kind)
    first_kinds: dict[str | None, int] = {}
    for finding in report.findings:
        first_kinds.setdefault(finding.file, kinds.index(finding.kind))
    groups: defaultdict[tuple[int, int, int, str], list[tuple[RankFile, str]]] = (
        defaultdict(list)
    )
    for file in report.last_dumps:
        order = first_kinds.get(file.file, len(kinds))
        for device in file.devices:
            key = (order, -device.peak_bytes, device.reserved_bytes, device.largest)
            groups[key].append((file, device.name))
    rows = []
    for (_, negative_peak, reserved, largest), group in sorted(groups.items()):
        files, devices = zip(*group, strict=True)
        device_shown = devices[0] if len(set(devices)) == 1 else "several"
        sizes = f"{format_bytes(-negative_peak):>11}  {format_bytes(reserved):>11}"
        rows.append((_names(files), device_shown, f"{sizes}  {largest or 'nothing'}"))
    return rows


def _names(files: Sequence[RankFile]) -> str:
    """Name ranks, those that follow each other as a range; files that are of none by their path."""
    numbers = {file.rank for file in files if file.rank is not None}
    starts = sorted(rank for rank in numbers if rank - 1 not in numbers)
    ends = sorted(rank for rank in numbers if rank + 1 not in numbers)
    names = []
    for start, end in zip(starts, ends, strict=True):
        names.append(str(start) if start == end else f"{start}-{end}")
    names += [file.file for file in files if file.rank is None]
    if len(names) > _MOST_NAMES:
        return f"{names[0]} and {len(files) - 1} more"
    return ", ".join(names)


def _next_lines(report: JobReport) -> Iterator[str]:
    """Name the next command, of the rank that matters most."""
    paths = [finding.file for finding in report.findings if finding.file is not None]
    if not paths:
        return
    path = paths[0]
    device = next(
        (file.main_device for file in report.last_dumps if file.file == path), None
    )
    if "://" in path:  # the commands of one file read none of a store
        yield f"  copy {path} here, then"
        path = path.rpartition("/")[2]
    if device is None:
        yield next_line("info", path)
    else:
        yield next_line(device.command, path, kind=device.kind)
