"""A line of blocks shows every spike, and no more than its width."""

import io

import numpy as np
import pytest

from snapconv.cli.terminal import shows_blocks
from snapconv.notes import Note
from snapconv.writers.text.notes import short_note_lines
from snapconv.writers.text.size_rows import sparkline


def test_the_greatest_value_is_a_full_block_and_nothing_is_blank():
    assert sparkline(np.array([0, 4, 8])) == " ▄█"


def test_a_spike_of_one_event_among_a_million_is_seen():
    values = np.ones(1_000_000, np.int64)
    values[654_321] = 1000
    drawn = sparkline(values, width=50)
    assert len(drawn) == 50
    assert drawn.index("█") == 654_321 * 50 // 1_000_000
    assert drawn.count("▁") == 49


@pytest.mark.parametrize("values", [[], [0, 0]])
def test_nothing_is_no_line(values):
    assert sparkline(np.array(values, np.int64)) == ""


class Terminal(io.StringIO):
    def __init__(self, encoding, is_terminal=True):
        super().__init__()
        self._encoding, self._is_terminal = encoding, is_terminal

    @property
    def encoding(self):  # type: ignore[override] # as that of sys.stdout
        return self._encoding

    def isatty(self):
        return self._is_terminal


@pytest.mark.parametrize(
    ("stream", "term", "is_shown"),
    [
        (Terminal("utf-8"), "xterm", True),
        (Terminal("UTF8"), "xterm", True),
        (Terminal("latin-1"), "xterm", False),
        (Terminal("utf-8", is_terminal=False), "xterm", False),
        (Terminal("utf-8"), "dumb", False),
        (None, "xterm", False),
    ],
)
def test_blocks_are_for_a_terminal_that_can_show_them(monkeypatch, stream, term, is_shown):
    monkeypatch.setenv("TERM", term)
    assert shows_blocks(stream) is is_shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "according to the file, its ring buffer overflowed; the true peak",
            "according to the file, its ring buffer overflowed",
        ),
        ("the times are those of a processor: the number of calls", "the times are those of a processor"),
        (
            "the events have no times (torch before 2.2): order is known",
            "the events have no times (torch before 2.2)",
        ),
        ("the events stood (one; two) here", "the events stood"),
        ("Lost.", "Lost."),
    ],
)
def test_a_short_note_is_its_slug_and_one_clause(message, shown):
    assert list(short_note_lines((Note("a-slug", message, 1),))) == [f"note: a-slug (cuda:1): {shown}"]
