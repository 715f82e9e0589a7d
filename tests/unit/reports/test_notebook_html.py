"""A notebook shows a session's head figures, and gets its allocations by column."""

import pickle
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import snapconv
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
