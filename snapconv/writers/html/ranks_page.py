"""A JobReport -> one HTML page: the peaks by the axes of the mesh, and a line for each rank.

A line has the peak as a bar and the largest line of the program. Nothing runs in the page and
nothing is loaded: names from files are text. Bars share one scale, so that a rank that differs is
seen among thousands.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from urllib.parse import quote

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
_BAR_WIDTH = 300
_BAR_HEIGHT = 12
# Cells of the heat map: with their rank and peak, or without text where there are many.
_CELL_WIDTH, _CELL_HEIGHT = 84, 34
_SMALL_CELL = 14
_MOST_TEXTS = 512
_LABEL_WIDTH, _LABEL_HEIGHT = 150, 18
# The lightest cell is seen on either background, and text on the strongest.
_FAINTEST, _STRONGEST = 0.12, 0.75
_STYLE = """
:root{color-scheme:light dark}
body{font:14px system-ui,sans-serif;margin:2em;overflow-wrap:anywhere}
table{border-collapse:collapse}.box{overflow-x:auto}.heat{max-width:100%;height:auto}
.heat text{font-size:12px;fill:currentcolor}
.heat a:focus rect,.heat a:hover rect{stroke:currentcolor}
td,th{padding:1px 8px;text-align:left;white-space:nowrap}
td:nth-last-child(-n+2){white-space:normal;overflow-wrap:normal;min-width:14em}
td.n{text-align:right;font-variant-numeric:tabular-nums}tr.odd{font-weight:bold}
@media(max-width:600px){body{margin:10px}}
li{margin:2px 0}.e{color:#c33}svg{vertical-align:middle}
"""


def write_ranks_page(
    path: Path,
    report: JobReport,
    *,
    pages: Mapping[str, str] | None = None,
    force: bool,
) -> None:
    """Write the page whole, or not at all; raises OutputError.

    ``pages`` are those of ``snapconv view`` by the rank's file, as paths from this page.
    """
    with (
        new_files([path], force=force) as (temporary,),
        temporary.open("w", encoding="utf-8") as file,
    ):
        file.writelines(f"{line}\n" for line in _lines(report, pages or {}))


def _lines(report: JobReport, pages: Mapping[str, str]) -> Iterator[str]:
    title = f"{counted(len(report.last_dumps), 'rank')} – snapconv"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    yield f"style-src '{content_hash(_STYLE.encode())}'; img-src data:\">"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    style = f"<style>{_STYLE}</style></head><body>"
    yield f'<link rel="icon" href="data:,"><title>{_text(title)}</title>{style}'
    yield f"<h1>{_text(title)}</h1><ul>"
    for finding in report.findings:
        yield f"<li>{_text(finding.sentence)}</li>"
    for axis in report.axes:
        yield f"<li>{_text(f'{axis.name} ({axis.n_coordinates}): {axis.sentence}')}</li>"
    for file in report.errors:
        yield f'<li class="e">{_text(f"{file.name}: {file.error}")}</li>'
    yield "</ul>"
    yield from _heat_map(report.last_dumps, pages)
    yield from _table(report, pages)
    yield "</body></html>"


def _table(report: JobReport, pages: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each device of each rank, below the legend of the bars."""
    rows = [(file, device) for file in report.last_dumps for device in file.devices]
    legend = _legend([device for _, device in rows])
    yield f'<p>{legend}</p><div class="box"><table><tr>'
    yield f"{''.join(f'<th>{head}</th>' for head in _HEADS)}</tr>"
    odd_files = {finding.file for finding in report.findings}
    greatest = max((device.peak_bytes for _, device in rows), default=0)
    for file, device in rows:
        link = pages.get(file.file, "")
        yield _row(file, device, greatest, link, is_odd=file.file in odd_files)
    yield "</table></div>"
    if len(pages) < len(report.last_dumps):
        link_help = (
            "snapconv view FILE writes the page of a rank; snapconv ranks then links to it."
        )
        yield f"<p>{link_help}</p>"


def _row(
    file: RankFile, device: RankDevice, greatest: int, link: str, *, is_odd: bool
) -> str:
    mesh = " ".join(f"{axis}={index}" for axis, index in file.coordinates.items())
    cells = (
        _rank_cell(file, link),
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


def _rank_cell(file: RankFile, link: str) -> str:
    """Show the rank, with a link to its page, or else the command that writes it."""
    name = file.name.removeprefix("rank ")
    if not link:
        return _cell(name, f"snapconv view {file.file}")
    return f'<td><a href="{_text(link)}" title="{_text(file.file)}">{_text(name)}</a></td>'


@dataclass(frozen=True, slots=True)
class _Grid:
    """The cells of the heat map: the last axis goes across, all others go down.

    ``rows`` and ``columns`` have the position of each coordinate, ``sizes`` the least and the most
    bytes of a peak.
    """

    outer: tuple[str, ...]
    inner: str
    rows: dict[tuple[int, ...], int]
    columns: dict[tuple[int, ...], int]
    sizes: tuple[int, int]
    has_texts: bool

    @property
    def cell_size(self) -> tuple[int, int]:
        return (_CELL_WIDTH, _CELL_HEIGHT) if self.has_texts else (_SMALL_CELL, _SMALL_CELL)

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.cell_size
        return _LABEL_WIDTH + width * len(self.columns), _LABEL_HEIGHT + height * len(
            self.rows
        )

    def corner(self, file: RankFile) -> tuple[int, int]:
        """Return where a rank's cell begins."""
        width, height = self.cell_size
        column = self.columns[_key(file, (self.inner,))]
        row = self.rows[_key(file, self.outer)]
        return _LABEL_WIDTH + width * column, _LABEL_HEIGHT + height * row

    def opacity(self, peak_bytes: int) -> float:
        """Return the strength of a cell: the least peak is faint."""
        least_bytes, most_bytes = self.sizes
        n_bytes = most_bytes - least_bytes
        share = (peak_bytes - least_bytes) / n_bytes if n_bytes else 0.0
        return _FAINTEST + (_STRONGEST - _FAINTEST) * share


def _heat_map(files: Sequence[RankFile], pages: Mapping[str, str]) -> Iterator[str]:
    """Yield the peaks by the axes of the mesh; nothing where no rank has coordinates."""
    ranks = [file for file in files if file.coordinates and file.devices]
    axes = tuple(dict.fromkeys(chain.from_iterable(file.coordinates for file in ranks)))
    if not axes:
        return
    grid = _grid(ranks, axes)
    scale = "from {}, faint, to {}".format(*map(format_bytes, grid.sizes))
    yield f"<h2>Peaks by {_text(' and '.join(axes))}</h2><p>{scale}</p>"
    width, height = grid.size
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    yield f'<svg class="heat" {size}>'
    yield from _grid_labels(grid)
    for file in ranks:
        cell = _heat_cell(file, grid)
        link = pages.get(file.file)
        yield f'<a href="{_text(link)}">{cell}</a>' if link else cell
    yield "</svg>"


def _grid(ranks: Sequence[RankFile], axes: tuple[str, ...]) -> _Grid:
    *outer, inner = axes
    peaks = [_peak_bytes(file) for file in ranks]
    return _Grid(
        outer=tuple(outer),
        inner=inner,
        rows=_positions({_key(file, outer) for file in ranks}),
        columns=_positions({_key(file, (inner,)) for file in ranks}),
        sizes=(min(peaks), max(peaks)),
        has_texts=len(ranks) <= _MOST_TEXTS,
    )


def _positions(keys: set[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    return {key: position for position, key in enumerate(sorted(keys))}


def _grid_labels(grid: _Grid) -> Iterator[str]:
    """Yield the coordinates beside the rows, and above the columns where they have room."""
    width, height = grid.cell_size
    for key, row in grid.rows.items():
        pairs = zip(grid.outer, key, strict=True)
        label = " ".join(f"{axis}={index}" for axis, index in pairs)
        yield _label(0, _LABEL_HEIGHT + height * row + height / 2 + 4, label)
    for (index,), column in grid.columns.items():
        if grid.has_texts or column == 0:
            yield _label(_LABEL_WIDTH + width * column, 12, f"{grid.inner}={index}")


def _heat_cell(file: RankFile, grid: _Grid) -> str:
    x, y = grid.corner(file)
    width, height = grid.cell_size
    peak = _peak_bytes(file)
    box = f'x="{x}" y="{y}" width="{width - 2}" height="{height - 2}"'
    tip = f"<title>{_text(f'{file.name}: {format_bytes(peak)}')}</title>"
    fill = f'fill="#0a5fd0" fill-opacity="{grid.opacity(peak):.2f}"'
    cell = f"<rect {box} {fill}>{tip}</rect>"
    if grid.has_texts:
        cell += _label(x + 5, y + 13, file.name.removeprefix("rank "))
        cell += _label(x + 5, y + 27, format_bytes(peak))
    return cell


def _key(file: RankFile, axes: Sequence[str]) -> tuple[int, ...]:
    return tuple(file.coordinates.get(axis, -1) for axis in axes)


def _peak_bytes(file: RankFile) -> int:
    return max(device.peak_bytes for device in file.devices)


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{_text(text)}</text>'


def link_to(page: Path, folder: Path) -> str:
    """Return the address of a page as seen from a folder."""
    relative = os.path.relpath(page.resolve(), folder.resolve())
    return quote(Path(relative).as_posix())


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
