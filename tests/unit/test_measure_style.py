"""scripts/measure_style: its help, and what it says of a folder without Python files."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_style"

if not SCRIPT.exists():
    pytest.skip("scripts/ is not here", allow_module_level=True)


def measure(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, encoding="utf-8", timeout=60
    )


def test_its_help_is_printed():
    done = measure("--help")
    assert done.returncode == 0
    assert "--list" in done.stdout
    assert done.stderr == ""


def test_a_folder_without_python_files_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("no code")
    for folder in (tmp_path, tmp_path / "absent"):
        done = measure(str(folder))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{folder}: there are no Python files" in done.stderr


def test_a_folder_has_a_table(tmp_path):
    (tmp_path / "code.py").write_text("x = 1\n")
    assert measure(str(tmp_path)).stdout.startswith(f"{tmp_path.name}\n  lines ")
