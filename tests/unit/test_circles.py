"""Files of the core and of the page: none needs itself through others."""

import re
from pathlib import Path

import pytest

from tests.unit.test_layers import circle_in

ROOT = Path(__file__).parents[2]
CORE = ROOT / "snapconv" / "native" / "src"
PAGE = ROOT / "web" / "src"
# core.h declares what Python calls, wherever it is.
HEADERS = sorted(path for path in CORE.glob("*.h") if path.name != "core.h")
DECLARED = re.compile(r"^(?:\w+ )+\*?(\w+)\([^{}]*?\);", re.MULTILINE)
DEFINED = re.compile(r"^(?:\w+ )+\*?(\w+)\([^;]*?\) \{", re.MULTILINE)


def included(paths, pattern):
    return {path.stem: set(re.findall(pattern, path.read_text("utf-8"))) for path in paths}


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_what_a_header_declares_is_in_the_file_of_its_name(header):
    declared = set(DECLARED.findall(header.read_text("utf-8")))
    if declared:
        text = header.with_suffix(".c").read_text("utf-8")
        assert declared - set(DEFINED.findall(text)) == set()


def test_no_file_of_the_core_needs_itself_through_others():
    """A C file calls what the headers that it includes declare, and the test above says where that is."""
    headers = included(CORE.glob("*.h"), r'#include "(\w+)\.h"')
    sources = included(CORE.glob("*.c"), r'#include "(\w+)\.h"')
    for name, files in sources.items():
        headers.setdefault(name, set()).update(files - {name})
    assert headers["reader"] >= {"machine", "whole_events"}
    assert circle_in(headers) == []


def test_no_file_of_the_page_imports_itself_through_others():
    graph = included(PAGE.glob("*.ts"), r'from "\./(\w+)\.ts"')
    assert {"rows", "columns"} <= graph["model"]
    assert circle_in(graph) == []
