"""Next to nothing of a capture stays unknown: of one program here, of all by the script itself."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench" / "classification" / "captures.py"
# An optimizer of its own beside weights in half precision.
ENTRY = "master-weights"


def test_of_a_program_at_most_half_a_percent_of_the_peak_is_unknown():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--entry", ENTRY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| {ENTRY} |" in done.stdout
