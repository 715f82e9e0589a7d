"""Lines of text for ``snapconv ranks``: what differs first, then the groups and a line for each rank."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from snapconv.answers.ranks.job_report import JobReport, Kind
from snapconv.answers.ranks.rank_file import RankFile
from snapconv.units import counted, format_bytes
from snapconv.writers.text.size_rows import next_line

N_ROWS = 16
# Of every list of findings; --json and the database have all.
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
        yield from _section(title, [one.sentence for one in report.of_kind(kind)])
    yield from _section("not read", [_unread(file) for file in report.errors])
    yield from _group_lines(report)
    yield from _rank_lines(report, n_rows or N_ROWS)
    for hint in report.of_kind(Kind.HINT):
        yield f"  {hint.sentence}"
    yield from _next_lines(report)


def _unread(file: RankFile) -> str:
    """Name a file once: most errors do, and not by its rank."""
    error = file.error or ""
    return error if file.name in error else f"{file.name}: {error}"


def _head(report: JobReport) -> str:
    ranks = report.last_dumps
    peaks = [device.peak_bytes for file in ranks if (device := file.main_device) is not None]
    lacking = f"; {report.lacking}" if report.lacking else ""
    spread = ""
    if peaks:
        least = format_bytes(min(peaks))
        most = format_bytes(max(peaks))
        spread = f"; peaks {least} to {most}" if least != most else f"; peak {most}"
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
    for one in report.groups:
        yield (
            f"    {one.name or 'other':<12}{counted(one.n_ranks, 'rank'):>12}  median "
            f"{format_bytes(one.median_bytes)}, {format_bytes(one.least_bytes)} to "
            f"{format_bytes(one.most_bytes)}"
        )


def _rank_lines(report: JobReport, n_rows: int) -> Iterator[str]:
    """Show a line for each rank, or for ranks that are equal: remarkable ones first, then by their peaks."""
    kinds = list(Kind)
    first = {one.file: kinds.index(one.kind) for one in reversed(report.findings)}
    alike: defaultdict[tuple[int, int, int, str], list[tuple[RankFile, str]]] = defaultdict(list)
    for file in report.last_dumps:
        place = first.get(file.file, len(kinds))
        for device in file.devices:
            key = (place, -device.peak_bytes, device.reserved_bytes, device.largest)
            alike[key].append((file, device.name))
    rows = [
        (_names([file for file, _ in found]), {device for _, device in found}, key)
        for key, found in sorted(alike.items())
    ]
    if not rows:
        return
    width = max(4, *(len(name) for name, _, _ in rows[:n_rows]))
    yield f"  {'rank':<{width}}  device         peak     reserved  most of it"
    for name, devices, (_, peak, reserved, largest) in rows[:n_rows]:
        which = devices.pop() if len(devices) == 1 else "several"
        figures = f"{format_bytes(-peak):>11}  {format_bytes(reserved):>11}"
        yield f"  {name:<{width}}  {which:<8}{figures}  {largest or 'nothing'}"
    if len(rows) > n_rows:
        yield (
            f"  and {counted(len(rows) - n_rows, 'more row')}: --top {len(rows)}, --json or -o "
            f"OUT.sqlite"
        )


def _names(files: Sequence[RankFile]) -> str:
    """Name ranks, those that follow each other as a range; files that are of none by their path."""
    numbers = {file.rank for file in files if file.rank is not None}
    starts = sorted(one for one in numbers if one - 1 not in numbers)
    ends = sorted(one for one in numbers if one + 1 not in numbers)
    ranges = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    names = [*ranges, *(file.file for file in files if file.rank is None)]
    return (
        ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} and {len(files) - 1} more"
    )


def _next_lines(report: JobReport) -> Iterator[str]:
    """Name the next command, of the rank that matters most."""
    worst = next((one for one in report.findings if one.file is not None), None)
    if worst is None:
        return
    device = next((file.main_device for file in report.last_dumps if file.file == worst.file), None)
    path = str(worst.file)
    if "://" in path:  # the commands of one file read none of a store
        yield f"  copy {path} here, then"
        path = path.rpartition("/")[2]
    yield next_line(
        device.command if device else "info", path, kind=device.kind if device else "cuda"
    )
