"""Colours by category, on a terminal alone and with the same words either way; groups in the help."""

import io
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from snapconv.answers.peak import EITHER_LABEL
from snapconv.classification.categories import Category
from snapconv.cli.app import COMMANDS, GROUPS
from snapconv.cli.terminal import CATEGORY_COLORS, print_lines

GROWING = Path(__file__).parents[3] / "fixtures" / "growing.pickle"
CODES = re.compile(r"\x1b\[\d+m")
BAR = "\N{LOWER HALF BLOCK}"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(line, stream, **options):
    print_lines([line], stream, **options)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_every_category_has_a_colour():
    assert set(CATEGORY_COLORS) == {category.label for category in Category} | {EITHER_LABEL}


def test_a_pipe_has_no_colours_and_always_the_same_words(snapconv):
    plain = snapconv("summary", GROWING).out
    assert "\x1b" not in plain
    assert BAR not in plain
    colored = snapconv("summary", GROWING, "--color", "always").out
    words = CODES.sub("", colored).replace(BAR, "")
    assert [line.rstrip() for line in words.splitlines()] == plain.splitlines()
    assert "\x1b[32mactivation\x1b[0m" in colored
    assert snapconv("summary", GROWING, "--color", "never").out == plain


def test_a_bar_is_as_long_as_the_share_of_twenty_columns(snapconv):
    """Of 20 columns 29.9 % are 6, 3.8 % are 1, and less than 0.1 % none."""
    lines = snapconv("summary", GROWING, "--color", "always").out.splitlines()
    for label, length in (("temporary", 6), ("weight", 1), ("gradient", 0)):
        (line,) = [line for line in lines if f"m{label}\x1b" in line and " % " in line]
        assert line.count(BAR) == length


@pytest.mark.parametrize(
    ("name", "value", "is_colored"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)],
)
@pytest.mark.skipif(sys.platform == "win32", reason="an old console shows no colours")
def test_auto_is_a_terminal_that_shows_colours(name, value, is_colored, monkeypatch):
    monkeypatch.setenv(name, value)
    row = "  1.00 MiB  activation, in f"
    assert ("\x1b[32m" in printed(row, Terminal(), color="auto")) is is_colored
    assert "\x1b" not in printed(row, io.StringIO(), color="auto")
    assert "\x1b" not in printed(row, Terminal())


def test_the_word_in_a_sentence_or_a_name_is_not_coloured():
    for line in ("  what is an input, or a weight", "  4.00 MiB  input.py:3 in weight"):
        assert "\x1b" not in printed(line, io.StringIO(), color="always")


def test_what_a_file_says_cannot_bring_colours_of_its_own():
    assert "\x1b[31m" not in printed("  \x1b[31mred", io.StringIO(), color="always")


def test_json_has_no_colours(snapconv):
    assert "\x1b" not in snapconv("summary", GROWING, "--json", "--color", "always").out


def test_a_real_terminal_shows_them():
    pty = pytest.importorskip("pty")
    main, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "snapconv", str(GROWING)],
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(main, 4096):
            shown += part
    assert process.wait(60) == 0
    assert b"\x1b[94minput\x1b[0m" in shown


def test_every_command_is_in_one_group_of_the_help(snapconv):
    names = [name for group in GROUPS.values() for name in group]
    assert sorted(names) == sorted(COMMANDS)
    shown = snapconv("--help").out
    places = [shown.index(f"{title}:") for title in GROUPS]
    assert places == sorted(places)
    assert "\n  tree " in shown
