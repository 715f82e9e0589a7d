"""The outcome of checks for people and GitHub, with hostile names."""

import re

import pytest

from snapconv.answers.check import Check, CheckedFile
from snapconv.writers.text.comparisons import check_lines, github_lines

HELD, BROKEN = Check("peak allocated", 0, 100, 100), Check("peak reserved", 1, 100, 101)
UNKNOWN = Check("growth per iteration", 0, 0, 0, "the file has no trace")
HOSTILE = 'a"]]>&<script>\x00\x1b[2J|`*\n<!-- -->\ud800\ufffe.pickle'


def test_people_get_a_line_for_each_limit_and_the_verdict():
    assert list(check_lines(CheckedFile("s.pickle", (HELD, BROKEN, UNKNOWN)))) == [
        "ok    peak allocated of cuda:0: 100 B of at most 100 B",
        "FAIL  peak reserved of cuda:1: 101 B, 1 B over the limit of 100 B",
        "FAIL  growth per iteration of cuda:0 is not known: the file has no trace",
        "s.pickle: 2 of 3 limits did not hold",
    ]


@pytest.mark.parametrize("file", ["s.pickle", HOSTILE])
def test_a_summary_on_github_has_a_row_for_each_limit_and_no_markup_of_names(file):
    shown = list(github_lines(CheckedFile(file, (HELD, BROKEN))))
    assert len(shown) == 6
    assert not re.search(r"(?<!\\)[<>&`*]", shown[0])
    assert all("\n" not in line for line in shown)
    assert [line[:4] for line in shown[-2:]] == ["| ✅ ", "| ❌ "]
