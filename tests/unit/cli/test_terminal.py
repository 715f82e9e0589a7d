"""Text on a terminal: the text of a pipe, as wide as the terminal, and nothing that one would obey."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from snapconv.cli.app import main
from snapconv.cli.terminal import CATEGORY_COLORS, fitted
from tests.builders import TraceBuilder, frame

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

SOURCE = Path(__file__).parents[3] / "fixtures" / "out_of_memory.pickle"


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
        monkeypatch.delenv("COLUMNS", raising=False)
        for name, value in ({"TERM": "xterm-256color", "NO_COLOR": "1"} | variables).items():
            monkeypatch.setenv(name, value)
        if not to_terminal:
            assert main(list(map(str, arguments))) == 0
            return capsys.readouterr().out
        with terminal(encoding) as (stream, written), monkeypatch.context() as patch:
            patch.setattr("sys.stdout", stream)
            assert main(list(map(str, arguments))) == 0
        return b"".join(written).decode().replace("\r\n", "\n")

    return printed


def test_a_terminal_gets_the_text_of_a_pipe(printed):
    plain = printed(["verdict", SOURCE], to_terminal=False)
    assert printed(["verdict", SOURCE], to_terminal=True).split() == plain.split()


def test_a_terminal_gets_lines_of_its_width_and_a_pipe_whole_ones(printed, tmp_path):
    """The folder gives way, never the line number or the function; a sentence is broken, never cut."""
    line = ("adam_step", "/home/me/trainers/distributed/optimizers/adam_with_masters.py", 1152)
    path = (
        TraceBuilder().segment().alloc(1024, frames=[frame(*line)]).write(tmp_path / "run.pickle")
    )
    arguments = ["verdict", path, "--project-root", "/home"]
    whole = "me/trainers/distributed/optimizers/adam_with_masters.py:1152 in adam_step"
    for shown in (
        printed(arguments, to_terminal=False),
        printed(arguments, to_terminal=True, COLUMNS="200"),
    ):
        assert whole in shown
    lines = printed(arguments, to_terminal=True, COLUMNS="60").splitlines()
    assert any(part.endswith("…/adam_with_masters.py:1152 in") for part in lines)
    assert max(len(part) for part in lines if "  next: " not in part) <= 60


def test_a_figure_stays_with_its_unit_where_a_line_breaks():
    line = "cuda:0  peak 1.00 GiB: 17 % weights and 2.00 GiB more"
    assert fitted(line, 40, shortens_paths=True) == [
        "cuda:0  peak 1.00 GiB: 17 % weights and",
        "        2.00 GiB more",
    ]


def test_a_name_in_a_file_gives_a_terminal_no_colours_and_no_commands(printed, tmp_path):
    frames = [frame("\x1b[31mred\x1b]0;title\x07", "/home/me/project/\x1b[2Jmodel.py", 9)]
    path = TraceBuilder().segment().alloc(1024, frames=frames).write(tmp_path / "run.pickle")
    shown = printed([path], to_terminal=True, NO_COLOR="")
    assert "\\x1b[2Jmodel.py" in shown
    unknown = CATEGORY_COLORS["unknown"]
    assert f"\x1b[{unknown}munknown\x1b[0m" in shown  # our own
    assert "\x1b" not in shown.replace(f"\x1b[{unknown}munknown\x1b[0m", "")
    assert "\x07" not in shown
