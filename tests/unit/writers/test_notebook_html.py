"""A notebook shows a session's head figures, and gets its allocations by column."""

import pickle
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import snapconv
from snapconv.writers.html.notebook_html import COLORS
from tests.builders import MIB, TraceBuilder

FIXTURES = Path(__file__).parents[3] / "fixtures"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def shown(session):
    parser = Tags()
    parser.feed(session._repr_html_())
    return parser


def test_a_session_shows_the_peak_and_the_categories_of_every_device():
    session = snapconv.load(FIXTURES / "several_devices.pickle")
    page = shown(session)
    assert page.tags.count("table") == len(session.devices)
    for state in session.at():
        assert f"cuda:{state.device}: peak allocated" in page.text
        for row in state.categories:
            assert row.n_allocations == 0 or row.category in page.text


def test_a_name_from_a_file_is_text_and_no_markup(tmp_path):
    path = tmp_path / "<script>alert(1)<.pickle"
    path.write_bytes(pickle.dumps(TraceBuilder().segment(2 * MIB).alloc(512).snapshot(**{"<img src=x>": 1})))
    page = shown(snapconv.load(path))
    assert not {"script", "img"} & set(page.tags)
    assert "<script>alert(1)<.pickle" in page.text
    assert "<img src=x>" in page.text


@pytest.mark.parametrize("name", ["empty_snapshot", "missing_trace", "host_only"])
def test_a_file_without_events_or_memory_is_shown_too(name):
    assert "peak allocated" in shown(snapconv.load(FIXTURES / f"{name}.pickle")).text


def test_columns_are_the_sessions_own_and_sum_to_the_peak():
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (analysis,) = session.devices
    columns = session.columns()
    assert {len(column) for column in columns.values()} == {len(analysis.allocations)}
    assert np.shares_memory(columns["block_bytes"], analysis.allocations.block_bytes)
    live = analysis.allocations.live_at(analysis.peak_event)
    (state,) = session.at()
    for row in state.categories:
        mine = live & (columns["category"] == row.category)
        assert columns["block_bytes"][mine].sum() == row.block_bytes


@pytest.mark.parametrize(
    ("library", "make"), [("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")]
)
def test_every_library_of_tables_takes_the_columns(library, make):
    module = pytest.importorskip(library)
    session = snapconv.load(FIXTURES / "perceptron.pickle")
    table = getattr(module, make)(session.columns())
    assert table.shape == (len(session.devices[0].allocations), len(session.columns()))


def test_the_timeline_is_stacked_by_category_to_the_peak_in_the_colours_of_the_page():
    session = snapconv.load(FIXTURES / "training_step.pickle")
    source = (FIXTURES.parent / "web" / "src" / "colors.ts").read_text(encoding="utf-8")
    of_page = re.findall(
        r"^  (\w+): \[0x(\w\w), 0x(\w\w), 0x(\w\w)\]", source.split("ON_DARK")[0], re.MULTILINE
    )
    assert {name: f"#{''.join(color)}" for name, *color in of_page} == COLORS
    stacked = re.search(r"STACKED = \[(.*?)\]", source, re.DOTALL).group(1)
    assert re.findall(r'"(\w+)"', stacked) == list(COLORS)
    svg = ElementTree.fromstring(re.search("<svg.*</svg>", session._repr_html_()).group())
    shown = {shape.get("fill"): shape.get("points").split() for shape in svg}
    (state,) = session.at()
    assert {COLORS[row.category] for row in state.categories if row.n_allocations} <= set(shown)
    heights = [float(point.split(",")[1]) for points in shown.values() for point in points]
    assert min(heights) == 0  # the peak touches the upper edge
    assert max(heights) == float(svg.get("height"))


@pytest.mark.parametrize("table", ["allocations", "events", "segments", "blocks"])
def test_every_table_has_its_own_columns_without_copies(table):
    (analysis,) = (session := snapconv.load(FIXTURES / "training_step.pickle")).devices
    device = analysis.device
    own = {"events": device.events, "segments": device.segments, "blocks": device.blocks}
    mine = own.get(table, analysis.allocations)
    columns = session.columns(table=table)
    for name in {field.name for field in fields(mine)} & set(columns):
        assert columns[name] is getattr(mine, name)
    page = Tags()
    page.feed(mine._repr_html_())
    assert f"{len(mine):,} rows" in page.text
    assert page.tags.count("tr") == 1 + min(10, len(mine))
    first, last = int(mine.addr[0]), int(mine.addr[-1])
    assert str(first) in page.text
    assert str(last) in page.text


def address_of(column):
    return column.__array_interface__["data"][0]


def test_numbers_reach_pandas_polars_and_arrow_without_a_copy():
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    columns = snapconv.load(FIXTURES / "training_step.pickle").columns()
    numbers = {name for name, column in columns.items() if column.dtype.kind == "i"}
    assert {"block_bytes", "alloc_event", "stack_id"} <= numbers
    in_pandas, in_polars = pandas.DataFrame(columns, copy=False), polars.DataFrame(columns)
    in_arrow = arrow.table(columns)
    for name in numbers:
        own = address_of(columns[name])
        assert address_of(in_pandas[name].to_numpy()) == own
        assert address_of(in_polars[name].to_numpy(allow_copy=False)) == own
        assert in_arrow.column(name).chunk(0).buffers()[1].address == own
