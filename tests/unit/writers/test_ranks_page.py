"""A page with a line for each rank: everything is in it as text, and nothing of it can run."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from snapconv.answers.ranks.job_report import report_job
from snapconv.answers.ranks.rank_file import RankFile, rank_file
from snapconv.cli.app import main
from snapconv.errors import OutputExistsError
from snapconv.session import load
from snapconv.writers.html.ranks_page import COLORS, write_ranks_page
from tests.builders import MIB, frame
from tests.job_builder import rank_trace, write_rank

HOSTILE = "</td><script>alert(1)</script>\" onload='x"


class Page(HTMLParser):
    """The tags of a page with their attributes, the widths of the bars by row, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag == "rect" and self.rows:
            self.rows[-1].append(float(dict(attrs)["width"]))

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def page(tmp_path):
    traces = [rank_trace(), rank_trace(), rank_trace(), rank_trace(leak=14 * MIB)]
    traces[2].alloc(512, frames=[frame(HOSTILE, f"/home/me/project/{HOSTILE}.py", 3)])
    files = [RankFile(HOSTILE, 9, error=HOSTILE, exit_code=3)]
    for rank, trace in enumerate(traces):
        path = write_rank(tmp_path / f"rank{rank}.pickle", trace)
        files.append(rank_file(load(path).analysis, RankFile(f"{rank}{HOSTILE}", rank)))
    output = tmp_path / "job.html"
    write_ranks_page(output, report_job(files), force=False)
    with pytest.raises(OutputExistsError):
        write_ranks_page(output, report_job(files), force=False)
    return Page(output.read_text(encoding="utf-8"))


def test_the_axes_of_a_mesh_are_lines(tmp_path):
    device = rank_file(
        load(write_rank(tmp_path / "rank0.pickle")).analysis, RankFile("0", 0)
    ).devices
    files = [
        RankFile(str(n), n, coordinates={"dp": n // 2, "<tp>": n % 2}, devices=device)
        for n in range(4)
    ]
    write_ranks_page(tmp_path / "job.html", report_job(files), force=False)
    text = Page((tmp_path / "job.html").read_text(encoding="utf-8")).text
    assert "dp (2): peaks are equal" in text
    assert "<tp> (2): peaks are equal" in text


def test_every_rank_has_a_line_whose_bar_is_as_long_as_its_peak(page):
    lengths = [sum(row) for row in page.rows[1:]]
    assert lengths[:2] == [pytest.approx(150, abs=0.2)] * 2  # 14 of 28 MiB, of 300 pixels
    assert lengths[3] == pytest.approx(300, abs=0.2)
    assert len(lengths) == 4
    assert "rank 3: +14.00 MiB activation at leak.py:7 (none in its group)" in page.text


def test_names_are_text_and_nothing_runs_or_is_loaded(page):
    assert not [
        tag for tag, _ in page.tags if tag in ("script", "img", "iframe", "object", "embed")
    ]
    assert not [
        name for _, attrs in page.tags for name in attrs if name.startswith("on") or name == "src"
    ]
    assert HOSTILE in page.text
    policy = next(
        attrs["content"] for tag, attrs in page.tags if tag == "meta" and "content" in attrs
    )
    assert policy.startswith("default-src 'none'")


def test_the_colours_are_those_of_the_page_of_a_file_in_its_order():
    source = (Path(__file__).parents[3] / "web" / "src" / "colors.ts").read_text(encoding="utf-8")
    light = source.split("ON_DARK")[0]
    of_page = re.findall(r"^  (\w+): \[0x(\w\w), 0x(\w\w), 0x(\w\w)\]", light, re.MULTILINE)
    assert {name: f"#{''.join(color)}" for name, *color in of_page} == COLORS
    stacked = re.search(r"STACKED = \[(.*?)\]", source, re.DOTALL).group(1)
    assert re.findall(r'"(\w+)"', stacked) == list(COLORS)


def cells_of(text):
    """The opacity of every cell of the heat map by the title of the cell."""
    svg = re.search(r'<svg class="heat".*?</svg>', text, re.DOTALL).group()
    found = re.findall(r'fill-opacity="([\d.]+)"><title>(.*?)</title>', svg)
    return {title: float(opacity) for opacity, title in found}


def test_peaks_stand_in_a_heat_map_by_the_axes_of_the_mesh(tmp_path):
    traces = [rank_trace(), rank_trace(), rank_trace(), rank_trace(leak=14 * MIB)]
    files = []
    for rank, trace in enumerate(traces):
        path = write_rank(tmp_path / f"rank{rank}.pickle", trace)
        row = RankFile(str(path), rank, coordinates={"dp": rank // 2, "tp": rank % 2})
        files.append(rank_file(load(path).analysis, row))
    pages = {files[1].file: "rank1.view.html"}
    write_ranks_page(tmp_path / "job.html", report_job(files), pages=pages, force=False)
    text = (tmp_path / "job.html").read_text(encoding="utf-8")
    cells = cells_of(text)
    assert cells["rank 3: 28.00 MiB"] > cells["rank 0: 14.00 MiB"] == cells["rank 1: 14.00 MiB"]
    tags = Page(text).tags
    places = [(a["x"], a["y"]) for tag, a in tags if tag == "rect" and "fill-opacity" in a]
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = places
    assert (y0, y2) == (y1, y3)  # dp goes down
    assert (x0, x1) == (x2, x3)  # tp goes across
    assert y0 != y2
    assert x0 != x1
    assert [a["href"] for tag, a in tags if tag == "a"] == ["rank1.view.html"] * 2
    assert f"snapconv view {files[0].file}" in text  # its page is still to be written
    remark = "snapconv view FILE writes the page of a rank"
    assert remark in text
    pages = {file.file: "rank.view.html" for file in files}
    write_ranks_page(tmp_path / "job.html", report_job(files), pages=pages, force=True)
    assert remark not in (tmp_path / "job.html").read_text(encoding="utf-8")


def test_the_command_links_to_the_pages_that_are_there(tmp_path):
    names = ["rank0.pickle", "rank1.pickle"]
    paths = [write_rank(tmp_path / name, rank_trace()) for name in names]
    load(paths[1]).view(tmp_path / "rank1.view.html")
    page = tmp_path / "job.html"
    command = ["ranks", *map(str, paths), "--output", str(page), "--no-cache", "--quiet"]
    assert main(command) == 0
    tags = Page(page.read_text(encoding="utf-8")).tags
    assert [a["href"] for tag, a in tags if tag == "a"] == ["rank1.view.html"]
