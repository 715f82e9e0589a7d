"""Lines of text for ``snapconv fit``: the answer, then a row for each combination."""

from collections.abc import Iterator, Sequence

from snapconv.answers.fit import FitReport, FitRow, Verdict, shortage
from snapconv.torch_knowledge.cards import USUAL_NCCL_BYTES, USUAL_OUTSIDE_BYTES
from snapconv.units import counted, format_bytes

_FIGURES = (12, 12)
_GAP = "  "


def fit_lines(report: FitReport) -> Iterator[str]:
    """Show the answer, the memory of the card, and every combination that ran."""
    yield report.answer
    n_rows = counted(len(report.rows), "combination")
    yield f"  {n_rows} of {report.program}, each recorded without a GPU; {_memory(report)}"
    yield from _table(report.rows)


def _memory(report: FitReport) -> str:
    card = report.card
    has_nccl = any(row.combination.world_size > 1 for row in report.rows)
    if card.total_bytes is None:
        return f"{format_bytes(card.usable_bytes)} for PyTorch"
    name = f"{card.name}, " if card.name else ""
    outside = [f"{format_bytes(USUAL_OUTSIDE_BYTES)} of CUDA's context and libraries"]
    if has_nccl:
        outside.append(f"{format_bytes(USUAL_NCCL_BYTES)} of NCCL in jobs of several cards")
    total = format_bytes(card.total_bytes)
    return f"{name}{total} less {' and '.join(outside)} (estimated; --capacity is exact)"


def _table(rows: Sequence[FitRow]) -> Iterator[str]:
    if not rows:
        return
    names = [name for name, _ in rows[0].combination.arguments]
    lines = [["cards", *names]]
    for row in rows:
        values = [value for _, value in row.combination.arguments]
        lines.append([str(row.combination.world_size), *values])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    fills = [_filled(row) for row in rows]
    fill_width = max(map(len, ["most of it", *fills]))
    tails = [_columns("peak", "reserved") + _GAP + f"{'most of it':<{fill_width}}  result"]
    for row, fill in zip(rows, fills, strict=True):
        figures = _columns(_size(row.peak_bytes), _size(row.reserved_bytes))
        tails.append(f"{figures}{_GAP}{fill:<{fill_width}}  {_result(row)}")
    for cells, tail in zip(lines, tails, strict=True):
        head = _GAP.join(
            f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
        )
        yield f"  {head}{tail}"


def _columns(*cells: str) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _FIGURES, strict=True))


def _size(n_bytes: int | None) -> str:
    return "" if n_bytes is None else format_bytes(n_bytes)


def _filled(row: FitRow) -> str:
    if not row.largest_category:
        return ""
    return f"{row.largest_category} {format_bytes(row.largest_bytes)}"


def _result(row: FitRow) -> str:
    """Say whether a combination fits, what is left or lacking, and the rank that decides."""
    rank = f", rank {row.rank}" if row.rank else ""
    if row.verdict is Verdict.FITS:
        remark = f" ({row.reason})" if row.reason else ""
        return f"fits, {format_bytes(row.left_bytes or 0)} left{rank}{remark}"
    if row.verdict is Verdict.TOO_LARGE:
        return f"does not fit: {shortage(row)}{rank}"
    return f"failed{rank}: {row.reason}"
