"""The outcome of checks for people, GitHub and build servers, with hostile names."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapconv.answers.check import Check, CheckedFile
from snapconv.writers.text.check import check_lines, fenced, github_lines, junit_text

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
def test_build_servers_get_well_formed_xml(file):
    suites = ElementTree.fromstring(junit_text(CheckedFile(file, (HELD, BROKEN, UNKNOWN))))
    (suite,) = suites
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert [case.get("name") for case in suite] == [
        "peak allocated (device 0)",
        "peak reserved (device 1)",
        "growth per iteration (device 0)",
    ]
    assert [case.find("failure") is not None for case in suite] == [False, True, True]
    assert {case.get("classname") for case in suite} == {suite[0].get("classname")}


@given(st.text())
def test_no_name_of_a_file_breaks_the_xml(file):
    assert len(ElementTree.fromstring(junit_text(CheckedFile(file, (HELD,))).encode())) == 1


@pytest.mark.parametrize("file", ["s.pickle", HOSTILE])
def test_a_summary_on_github_has_a_row_for_each_limit_and_no_markup_of_names(file):
    shown = list(github_lines(CheckedFile(file, (HELD, BROKEN))))
    assert len(shown) == 6
    assert not re.search(r"(?<!\\)[<>&`*]", shown[0])
    assert all("\n" not in line for line in shown)
    assert [line[:4] for line in shown[-2:]] == ["| ✅ ", "| ❌ "]


@given(st.lists(st.text(alphabet="`~ a\n")))
def test_nothing_ends_a_block_of_code_before_its_end(lines):
    first, *inner, last = fenced(lines)
    assert first == f"{last}text"
    assert all(not line.strip().startswith(last) for line in inner)
    assert len(inner) == len(lines)
