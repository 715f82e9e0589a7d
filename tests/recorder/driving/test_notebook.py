"""``%%snapconv`` in a real shell of IPython: the cell runs as without it, and is recorded."""

import html
import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("IPython")

from IPython.utils.capture import capture_output  # noqa: E402  # after the skips

import snapconv  # noqa: E402
from tests.notebook_shell import notebook_shell  # noqa: E402

# The folder of a checkout may be called snapconv too.
PACKAGE = Path(snapconv.__file__).parent
WEIGHTS = """%%snapconv run --simulate
import torch

weight = torch.zeros(1 << 20, device="cuda")  # 4 MiB
other = torch.zeros(1 << 18, device="cuda")
weight.sum().item() + 41
"""


COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Shown:
    """A cell that has run: how it ended, and all that is to be seen below it."""

    def __init__(self, shell, cell):
        with capture_output() as captured:
            self.result = shell.run_cell(cell, store_history=True)
        self.error = self.result.error_in_exec
        self.out, self.err = (COLOUR.sub("", text) for text in (captured.stdout, captured.stderr))
        self.displays = [output.data for output in captured.outputs]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """One shell for all tests."""
    with notebook_shell(tmp_path_factory.mktemp("ipython")) as shell:
        assert Shown(shell, "%load_ext snapconv").result.success
        yield shell


@pytest.fixture
def run(shell, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    return lambda cell: Shown(shell, cell)


def page_of(shown):
    """The page in the frame of a cell's answer."""
    (data,) = shown.displays
    frame = re.search(
        r'<iframe [^>]*sandbox="allow-scripts"[^>]* srcdoc="([^"]*)"', data["text/html"]
    )
    return html.unescape(frame.group(1))


def test_a_cell_runs_as_without_the_magic_and_its_peak_and_page_are_shown(run):
    shown = run(WEIGHTS)
    assert shown.result.success
    assert "41.0" in shown.out
    (data,) = shown.displays
    assert data["text/plain"].startswith("cuda:0  peak 5.00 MiB")
    assert page_of(shown).startswith("<!doctype html>")
    assert run("print(other.numel())").out == "262144\n"  # the user's own namespace


def test_lines_of_the_cell_are_the_projects_with_the_numbers_that_the_notebook_shows(run):
    run(WEIGHTS)
    shown = run("print(run.tree())")
    assert re.search(r"4\.00 MiB +1 +<ipython-input-\S+:4 in <module>", shown.out)
    assert re.search(r"1\.00 MiB +1 +<ipython-input-\S+:5 in <module>", shown.out)


def test_the_session_is_kept_under_its_name_and_says_that_it_is_simulated(run):
    run(WEIGHTS)
    assert "simulated" in run("print([note.slug for note in run.notes])").out


def test_an_error_of_the_cell_shows_from_the_cells_own_line_on(run):
    shown = run(
        '%%snapconv --simulate\nimport torch\ntorch.zeros(4, device="cuda") @ torch.zeros(5, device="cuda")\n'
    )
    assert isinstance(shown.error, RuntimeError)
    assert re.search(r"-+> 3 torch\.zeros", shown.out)
    assert shown.out.count("Traceback") == 1
    assert "run_cell_magic" not in shown.out
    assert f"{PACKAGE}/" not in shown.out
    assert len(shown.displays) == 1  # the recording up to there


def test_a_cell_that_runs_out_of_memory_shows_the_failed_request(run):
    shown = run(
        "%%snapconv --simulate --no-compute --capacity 64MiB\nimport torch\n"
        'kept = [torch.empty(1 << 20, device="cuda") for _ in range(17)]\n'
    )
    assert isinstance(shown.error, torch.OutOfMemoryError)
    (data,) = shown.displays
    assert "out of memory at <ipython-input-" in data["text/plain"]
    assert ":3" in data["text/plain"].splitlines()[0]


def test_a_syntax_error_shows_once_and_fails_the_cell(run):
    shown = run("%%snapconv --simulate\nx = = 3\n")
    assert shown.out.count("SyntaxError") == 1
    assert shown.error is not None
    assert shown.displays == []


def test_another_magic_may_follow(run):
    shown = run(
        '%%snapconv --simulate\n%%time\nimport torch\nx = torch.zeros(256, device="cuda")\n'
    )
    assert "Wall time" in shown.out
    assert len(shown.displays) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--no-compute", "--no-compute needs --simulate"),
        ("--capacity 1GiB", "--capacity needs --simulate"),
        ("--simulate --capacity much", "--capacity: "),
        ("not-a-name --simulate", "not-a-name is no name of a variable"),
        ("--simulated-annealing", "unrecognized arguments"),
    ],
)
def test_a_wrong_line_is_refused_in_a_sentence_before_the_cell_runs(run, line, reason):
    shown = run(f"%%snapconv {line}\nprint('it ran')\n")
    assert reason in shown.err
    assert "Traceback" not in shown.out
    assert "it ran" not in shown.out
    assert not shown.result.success


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_refusal_names_the_option(run):
    shown = run("%%snapconv\nprint('it ran')\n")
    assert shown.err.startswith("UsageError: torch finds no GPU here")
    assert "%%snapconv --simulate" in shown.err
    assert "it ran" not in shown.out


def test_a_cell_without_gpu_memory_says_that_there_is_no_capture(run, caplog):
    shown = run("%%snapconv --simulate\nx = 1\n")
    assert shown.result.success
    assert "there is no capture of this cell" in shown.err
    assert shown.displays == []


def test_a_page_that_is_too_large_for_a_notebook_is_left_out(run, monkeypatch):
    from snapconv.integrations import notebook

    monkeypatch.setattr(notebook, "_MOST_INLINE_BYTES", 1000)
    (data,) = run(WEIGHTS).displays
    assert "iframe" not in data["text/html"]
    assert "run.view().open()" in data["text/html"]


def test_a_named_folder_keeps_the_capture(run, tmp_path):
    run(WEIGHTS.replace("--simulate", "--simulate --output kept"))
    assert [path.suffix for path in Path(tmp_path, "kept").iterdir()] == [".capture"]


def test_importing_snapconv_imports_no_ipython(tmp_path):
    import subprocess

    program = "import sys, snapconv; print('IPython' in sys.modules)"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": root, "PATH": ""},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.strip() == "False"
