"""A JobReport -> one HTML page with a line for each rank: its peak as a bar, its largest line.

Nothing runs in it and nothing is loaded: names from files are text. Bars share one scale, so that a
rank that differs is seen among thousands.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path

from snapconv.answers.ranks.job_report import JobReport
from snapconv.answers.ranks.rank_file import RankDevice, RankFile
from snapconv.classification.categories import ABOUT
from snapconv.files import new_files
from snapconv.units import counted, format_bytes, printable
from snapconv.writers.html.column_encoding import content_hash

COLORS = {category.label: shown.color for category, shown in ABOUT.items()}
_HEADS = (
    "rank",
    "mesh",
    "device",
    "peak",
    "reserved",
    "peak by category",
    "most of it",
    "history",
)
_BAR_WIDTH = 420
_BAR_HEIGHT = 12
_STYLE = """
body{font:14px system-ui,sans-serif;margin:2em;color-scheme:light dark}
table{border-collapse:collapse}td,th{padding:1px 10px;text-align:left;white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums}tr.odd{font-weight:bold}
li{margin:2px 0}.e{color:#c33}svg{vertical-align:middle}
"""


def write_ranks_page(path: Path, report: JobReport, *, force: bool) -> None:
    """Write the page whole, or not at all; raises OutputError."""
    with (
        new_files([path], force=force) as (temporary,),
        temporary.open("w", encoding="utf-8") as file,
    ):
        file.writelines(f"{line}\n" for line in _lines(report))


def _lines(report: JobReport) -> Iterator[str]:
    title = f"{counted(len(report.last_dumps), 'rank')} – snapconv"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    yield f"style-src '{content_hash(_STYLE.encode())}'; img-src data:\">"
    style = f"<style>{_STYLE}</style></head><body>"
    yield f'<link rel="icon" href="data:,"><title>{_text(title)}</title>{style}'
    yield f"<h1>{_text(title)}</h1><ul>"
    for finding in report.findings:
        yield f"<li>{_text(finding.sentence)}</li>"
    for axis in report.axes:
        yield f"<li>{_text(f'{axis.name} ({axis.n_coordinates}): {axis.sentence}')}</li>"
    for file in report.errors:
        yield f'<li class="e">{_text(f"{file.name}: {file.error}")}</li>'
    rows = [(file, device) for file in report.last_dumps for device in file.devices]
    yield f"</ul><p>{_legend([device for _, device in rows])}</p><table><tr>"
    yield f"{''.join(f'<th>{head}</th>' for head in _HEADS)}</tr>"
    odd_files = {finding.file for finding in report.findings}
    greatest = max((device.peak_bytes for _, device in rows), default=0)
    for file, device in rows:
        yield _row(file, device, greatest, is_odd=file.file in odd_files)
    yield "</table></body></html>"


def _row(file: RankFile, device: RankDevice, greatest: int, *, is_odd: bool) -> str:
    mesh = " ".join(f"{axis}={index}" for axis, index in file.coordinates.items())
    cells = (
        _cell(file.name.removeprefix("rank "), file.file),
        _cell(mesh),
        _cell(device.name),
        f'<td class="n">{_text(format_bytes(device.peak_bytes))}</td>',
        f'<td class="n">{_text(format_bytes(device.reserved_bytes))}</td>',
        f"<td>{_bar(device, greatest)}</td>",
        _cell(device.largest, device.verdict),
        _cell(device.history),
    )
    attribute = " class=odd" if is_odd else ""
    return f"<tr{attribute}>{''.join(cells)}</tr>"


def _cell(text: str, title: str = "") -> str:
    attribute = f' title="{_text(title)}"' if title else ""
    return f"<td{attribute}>{_text(text)}</td>"


def _bar(device: RankDevice, greatest: int) -> str:
    parts = []
    x = 0.0
    for name in sorted(device.categories, key=_order):
        n_bytes = device.categories[name]
        width = _BAR_WIDTH * n_bytes / max(greatest, 1)
        tip = f"<title>{_text(f'{name} {format_bytes(n_bytes)}')}</title>"
        box = (
            f'x="{x:.1f}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="{_color(name)}"'
        )
        parts.append(f"<rect {box}>{tip}</rect>")
        x += width
    return f'<svg width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}">{"".join(parts)}</svg>'


def _legend(devices: Sequence[RankDevice]) -> str:
    names = {*chain.from_iterable(device.categories for device in devices)}
    entries = []
    for name in sorted(names, key=_order):
        rect = f'<rect width="100%" height="100%" fill="{_color(name)}"/>'
        swatch = f'<svg width="{_BAR_HEIGHT}" height="{_BAR_HEIGHT}">{rect}</svg>'
        entries.append(f"{swatch} {_text(name)}")
    return " ".join(entries)


def _order(category: str) -> tuple[int, str]:
    categories = list(COLORS)
    position = categories.index(category) if category in COLORS else len(categories)
    return position, category


def _color(category: str) -> str:
    return COLORS.get(category, COLORS["unknown"])


def _text(text: str) -> str:
    return escape(printable(text))
