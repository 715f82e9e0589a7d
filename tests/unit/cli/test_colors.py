"""Colours and widths: on a terminal that shows them, and nowhere else."""

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from snapconv.cli.app import main
from snapconv.cli.terminal import fitted
from tests.builders import TraceBuilder, frame

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

SOURCE = Path(__file__).parents[3] / "fixtures" / "out_of_memory.pickle"
ESCAPES = re.compile(r"\x1b\[[\d;]*m")
OURS = "\x1b[1;31mout of memory\x1b[0m"


@contextmanager
def terminal(encoding="utf-8") -> Iterator[tuple[io.TextIOWrapper, list[bytes]]]:
    """A stream that is a terminal, and all that was written to it when it is closed."""
    ours, its = pty.openpty()
    written: list[bytes] = []

    def read():
        with suppress(OSError):  # how Linux ends what is read from a terminal that is closed
            while part := os.read(ours, 4096):
                written.append(part)

    reader = Thread(target=read)
    reader.start()
    try:
        with open(its, "w", encoding=encoding, newline="") as stream:  # noqa: PTH123  # a descriptor
            yield stream, written
    finally:
        reader.join()
        os.close(ours)


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a command writes to its standard output, a terminal or a pipe, under these variables."""

    def printed(arguments, *, to_terminal, encoding="utf-8", **variables):
        for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in ({"TERM": "xterm-256color"} | variables).items():
            monkeypatch.setenv(name, value)
        if not to_terminal:
            assert main(list(map(str, arguments))) == 0
            return capsys.readouterr().out
        with terminal(encoding) as (stream, written), monkeypatch.context() as patch:
            patch.setattr("sys.stdout", stream)
            assert main(list(map(str, arguments))) == 0
        return b"".join(written).decode().replace("\r\n", "\n")

    return printed


@pytest.fixture
def arguments():
    return ["verdict", SOURCE]


def test_a_terminal_gets_the_text_of_a_pipe_in_colours(printed, arguments):
    plain = printed(arguments, to_terminal=False)
    shown = printed(arguments, to_terminal=True)
    assert "\x1b" not in plain
    assert OURS in shown
    assert ESCAPES.sub("", shown).split() == plain.split()


def test_a_terminal_gets_lines_of_its_width_and_a_pipe_whole_ones(printed, tmp_path):
    """The folder gives way, never the line number or the function; a sentence is broken, never cut."""
    line = ("adam_step", "/home/me/trainers/distributed/optimizers/adam_with_masters.py", 1152)
    path = TraceBuilder().segment().alloc(1024, frames=[frame(*line)]).write(tmp_path / "run.pickle")
    arguments = ["verdict", path, "--project-root", "/home"]
    whole = "me/trainers/distributed/optimizers/adam_with_masters.py:1152 in adam_step"
    for shown in (printed(arguments, to_terminal=False), printed(arguments, to_terminal=True, COLUMNS="200")):
        assert whole in shown
    lines = ESCAPES.sub("", printed(arguments, to_terminal=True, COLUMNS="60")).splitlines()
    assert any(part.endswith("…/adam_with_masters.py:1152 in") for part in lines)
    assert max(len(part) for part in lines if "  next: " not in part) <= 60


@pytest.mark.parametrize(
    "variables", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}], ids=" ".join
)
def test_a_terminal_gets_no_colours_where_they_are_not_wanted(printed, arguments, variables):
    assert "\x1b" not in printed(arguments, to_terminal=True, **variables)


def test_an_empty_no_color_says_nothing(printed, arguments):
    assert OURS in printed(arguments, to_terminal=True, NO_COLOR="")


def test_colours_can_be_forced_into_a_pipe(printed, arguments):
    assert OURS in printed(arguments, to_terminal=False, FORCE_COLOR="1")


def test_a_figure_stays_with_its_unit_where_a_line_breaks():
    line = "cuda:0  peak 1.00 GiB: 17 % weights and 2.00 GiB more"
    assert fitted(line, 40, shortens_paths=True) == [
        "cuda:0  peak 1.00 GiB: 17 % weights and",
        "        2.00 GiB more",
    ]


def test_a_name_in_a_file_gives_a_terminal_no_colours_and_no_commands(printed, tmp_path):
    frames = [frame("\x1b[31mred\x1b]0;title\x07", "/home/me/project/\x1b[2Jmodel.py", 9)]
    path = TraceBuilder().segment().alloc(1024, frames=frames).write(tmp_path / "run.pickle")
    shown = printed([path], to_terminal=True)
    assert "\\x1b[2Jmodel.py" in shown
    assert "\x1b[31mred" not in shown
    assert "\x07" not in shown
