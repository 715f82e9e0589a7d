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


def test_the_bracket_before_a_path_stays_where_its_folders_give_way():
    line = "  [1] no cost: Attention (cs336-basics/cs336_basics/model.py:427) has 24 tensors in use"
    first, _ = fitted(line, 60, shortens_paths=True)
    assert "Attention (…/model.py:427) has" in first


# A function that makes twelve tensors, the last the largest; each line is longer than a terminal.
SIZES_MIB = range(1, 13)
MODEL = "\n\ndef forward(self, x):\n" + "".join(
    f"    hidden_{n} = torch.nn.functional.scaled_dot_product_attention(query_{n}, key_{n}, v_{n})\n"
    for n in SIZES_MIB
)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (60, 24), (100, 40), (40, 12)])
def test_annotate_shows_the_hottest_lines_on_one_screen_each_on_one_row(
    columns, rows, printed, tmp_path, monkeypatch
):
    trace = TraceBuilder().segment(100 << 20)
    for n in SIZES_MIB:
        trace.alloc(n << 20, frames=[frame("forward", "/home/me/job/model.py", 3 + n)])
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "model.py").write_text(MODEL)
    words = ["annotate", trace.write(tmp_path / "run.pickle"), "--source", "job"]
    monkeypatch.chdir(tmp_path)
    screen = {"COLUMNS": str(columns), "LINES": str(rows)}
    shown = printed(words, to_terminal=True, **screen).splitlines()
    assert max(map(len, shown)) <= columns
    assert len(shown) < max(rows, 16)  # the figures, the folder and three lines on any screen
    source = [row for row in shown if "hidden_" in row]
    assert any(row.startswith("  12.00 MiB") and "  hidden_12 = " in row for row in source)
    n_left_out = sum(SIZES_MIB) - sum(int(row.split(".")[0]) for row in source)
    n_more = len(SIZES_MIB) - len(source)
    assert f"  {n_left_out}.00 MiB at {n_more} more line" in "\n".join(shown)
    # Who asks for a number gets it; a pipe has ten lines, and the one before the first of them.
    assert printed([*words, "--top", "12"], to_terminal=True, **screen).count("hidden_") == 12
    in_pipe = printed(words, to_terminal=False, **screen)
    assert in_pipe.count("hidden_") == 11
    assert "1.00 MiB at 1 more line: --top 12 shows all" in " ".join(in_pipe.split())


def test_a_name_in_a_file_gives_a_terminal_no_colours_and_no_commands(printed, tmp_path):
    frames = [frame("\x1b[31mred\x1b]0;title\x07", "/home/me/project/\x1b[2Jmodel.py", 9)]
    path = TraceBuilder().segment().alloc(1024, frames=frames).write(tmp_path / "run.pickle")
    shown = printed([path], to_terminal=True, NO_COLOR="")
    assert "\\x1b[2Jmodel.py" in shown
    unknown = CATEGORY_COLORS["unknown"]
    assert f"\x1b[{unknown}munknown\x1b[0m" in shown  # our own
    assert "\x1b" not in shown.replace(f"\x1b[{unknown}munknown\x1b[0m", "")
    assert "\x07" not in shown
