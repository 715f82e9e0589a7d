"""A range is read as it is written, and a window that a device does not have is refused."""

import pickle

import pytest

import snapconv
from snapconv.answers.event_window import (
    Range,
    find_window,
    parse_range,
)
from snapconv.errors import InputError
from tests.builders import MIB, TraceBuilder


def analysis_of(tmp_path, raw):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    (analysis,) = snapconv.load(path).devices
    return analysis


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("2:5", 2, 5), ("2:", 2, None), (":5", None, 5), ("3", 3, 3), (" 0:0 ", 0, 0)],
)
def test_a_range_is_read_as_it_is_written(text, first, last):
    assert parse_range(text) == Range(first, last)


@pytest.mark.parametrize("text", ["", ":", "a:b", "1:2:3", "-1:2", "1.5", "5:2", "0" * 18 + "5"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|before it begins"):
        parse_range(text)


@pytest.mark.parametrize("space", ["\x1f", "\t", "\x85"])
def test_what_is_refused_is_quoted_without_what_a_terminal_obeys(space):
    for text in ("5:2", "a:b"):
        with pytest.raises(ValueError) as error:
            parse_range(space + text)
        assert str(error.value).isprintable()


def test_both_ends_of_a_range_are_in_the_window(tmp_path):
    analysis = analysis_of(tmp_path, TraceBuilder().segment(2 * MIB).alloc(512).free().snapshot())
    window = find_window(analysis, events=Range(1, 2))
    assert (window.rows.tolist(), window.n_earlier) == ([1, 2], 0)


def test_a_request_that_waits_when_the_window_begins_comes_before_its_events(tmp_path):
    # Events: 0 segment, 1 alloc, 2 alloc, 3 free_requested of the second, 4 alloc, 5 its free_completed.
    trace = TraceBuilder().segment(2 * MIB).alloc(512).alloc(1024)
    addr = next(reversed(trace._live))
    trace.free(addr, completed=False).alloc(2048)
    trace.event("free_completed", addr=addr, size=1024)
    del trace._live[addr]
    window = find_window(analysis_of(tmp_path, trace.snapshot()), events=Range(4, 5))
    assert (window.rows.tolist(), window.n_earlier) == ([3, 4, 5], 1)


def test_a_free_that_no_figure_counts_is_left_out(tmp_path):
    trace = TraceBuilder().segment(2 * MIB).alloc(512)
    addr = next(reversed(trace._live))
    trace.free(addr).event("free_completed", addr=addr, size=512)
    analysis = analysis_of(tmp_path, trace.snapshot())
    assert find_window(analysis).rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("wanted", [Range(0, 4), Range(4, None), Range(9, 10)])
def test_events_and_iterations_that_are_not_there_are_refused(tmp_path, wanted):
    analysis = analysis_of(tmp_path, TraceBuilder().segment(2 * MIB).alloc(512).free().snapshot())
    with pytest.raises(InputError, match=r"cuda:0 has no event \d+; it has 4 events, from 0 to 3"):
        find_window(analysis, events=wanted)
    with pytest.raises(InputError, match=r"it has 1 iteration$"):
        find_window(analysis, iterations=wanted)
