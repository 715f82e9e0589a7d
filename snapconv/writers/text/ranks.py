"""Lines of text for ``snapconv ranks``: what differs first, then the groups and a line for each rank."""

from collections.abc import Iterator, Sequence
from itertools import islice

from snapconv.answers.ranks.job_report import JobReport, Kind
from snapconv.answers.ranks.rank_file import RankDevice, RankFile
from snapconv.units import counted, format_bytes
from snapconv.writers.text.size_rows import next_line

N_ROWS = 16
# Of every list of findings; --json and the database have all.
_MOST_FINDINGS = 10
_MOST_OF_NAME = 34
_TITLES = {
    Kind.OUT_OF_MEMORY: "ran out of memory",
    Kind.OUTLIER: "different from their group",
    Kind.IMBALANCE: "unequal",
    Kind.GROWTH: "grew from dump to dump",
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
    errors = f", {len(report.errors)} not read" if report.errors else ""
    spread = ""
    if peaks:
        least, most = format_bytes(min(peaks)), format_bytes(max(peaks))
        spread = f"; peaks {least} to {most}" if least != most else f"; peak {most}"
    return f"{counted(len(ranks), 'rank')} in {counted(report.n_files, 'file')}{errors}{spread}"


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
    """Show a line for each rank: the remarkable ones first, then the others by their peaks."""
    ranks = report.last_dumps
    if not ranks:
        return
    first = {one.file for one in report.findings}
    rows = sorted(
        ((file, device) for file in ranks for device in file.devices),
        key=lambda row: (row[0].file not in first, -row[1].peak_bytes),
    )
    yield f"  {'rank':<{_name_width(ranks)}}  device         peak     reserved  most of it"
    for file, device in islice(rows, n_rows):
        yield _rank_line(file, device, _name_width(ranks))
    if len(rows) > n_rows:
        yield f"  and {counted(len(rows) - n_rows, 'more row')}: --top {len(rows)}, --json or -o OUT.sqlite"


def _name_width(ranks: Sequence[RankFile]) -> int:
    return max(4, *(len(_name(file)) for file in ranks))


def _name(file: RankFile) -> str:
    if file.rank is not None:
        return str(file.rank)
    return file.file if len(file.file) <= _MOST_OF_NAME else f"…{file.file[1 - _MOST_OF_NAME :]}"


def _rank_line(file: RankFile, device: RankDevice, width: int) -> str:
    figures = f"{format_bytes(device.peak_bytes):>11}  {format_bytes(device.reserved_bytes):>11}"
    return f"  {_name(file):<{width}}  {device.name:<8}{figures}  {device.largest or 'nothing'}"


def _next_lines(report: JobReport) -> Iterator[str]:
    """Name the next command, of the rank that matters most."""
    worst = next((one for one in report.findings if one.file is not None), None)
    if worst is None:
        return
    (device,) = (file.main_device for file in report.last_dumps if file.file == worst.file)
    yield next_line(device.command if device else "info", str(worst.file))
