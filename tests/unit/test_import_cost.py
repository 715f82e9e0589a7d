"""Importing snapconv and asking for help are cheap: neither loads numpy or torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "torch")

SHOW_HEAVY = (
    f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
)
IMPORT = f"import sys, snapconv; {SHOW_HEAVY}"
HELP = f"""
import runpy, sys
sys.argv = ["snapconv", "--help"]
try:
    runpy.run_module("snapconv", run_name="__main__", alter_sys=True)
finally:
    {SHOW_HEAVY}
"""

SHOW_OWN = """
import sys
from snapconv.cli.app import main
code = main(sys.argv[1:])
print("own:", *(name for name in sys.modules if name.startswith("snapconv.")), file=sys.stderr)
sys.exit(code)
"""
SHOW_THREADS = """
import os, sys
from snapconv import __main__
from snapconv.cli import app
app.main = lambda: print(os.environ.get("OPENBLAS_NUM_THREADS")) or 0
__main__.run()
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        env={name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"},
    )


def test_importing_snapconv_loads_neither_numpy_nor_torch():
    done = run_python("-c", IMPORT)
    assert done.stderr == "loaded: []\n"
    assert (done.returncode, done.stdout) == (0, "")


def test_help_loads_neither_numpy_nor_torch():
    done = run_python("-c", HELP)
    assert done.stderr == "loaded: []\n"
    assert done.returncode == 0


def test_a_command_takes_its_words_without_loading_pydantic():
    fixture = "fixtures/transformer.capture"
    done = run_python(
        "-c", HELP.replace('"--help"', f'"info", "{fixture}"').replace(repr(HEAVY), "('pydantic',)")
    )
    assert done.stderr.endswith("loaded: []\n")
    assert done.stdout.startswith(fixture)


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (("info", "{fixture}"), 64),
        (("to-sqlite", "{fixture}", "-o", "{output}"), 110),
    ],
    ids=["info", "to-sqlite"],
)
@pytest.mark.parametrize("fixture", ["perceptron.pickle", "transformer.capture"])
def test_a_command_loads_few_modules(command, most, fixture, tmp_path):
    names = {"fixture": f"fixtures/{fixture}", "output": tmp_path / "report.sqlite"}
    own = modules_of(*(word.format_map(names) for word in command))
    assert "snapconv.cli.app" in own
    assert len(own) <= most


def test_a_failed_request_is_explained_without_the_texts_of_other_programs():
    own = modules_of("oom", "fixtures/out_of_memory.pickle")
    assert "snapconv.answers.oom.verdict" in own
    assert "snapconv.answers.oom.message_kinds" not in own


def modules_of(*command: str) -> list[str]:
    """List the modules of snapconv that a command has loaded."""
    done = run_python("-c", SHOW_OWN, *command)
    assert done.returncode == 0, done.stderr
    return done.stderr.split("own:")[1].split()


def test_marking_a_step_while_nothing_is_recorded_does_nothing_and_loads_nothing():
    done = run_python("-c", f"import sys, snapconv; assert snapconv.step() is None; {SHOW_HEAVY}")
    assert done.stderr == "loaded: []\n"
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("command", "n_threads"), [("record", "None"), ("watch", "None"), ("info", "1")]
)
def test_a_program_finds_as_many_threads_as_without_us(command, n_threads):
    assert run_python("-c", SHOW_THREADS, command).stdout == f"{n_threads}\n"
