"""Next to nothing of a capture stays unknown: of a few programs here, of all by the script itself."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench" / "classification" / "captures.py"
# An optimizer of its own beside weights in half precision; an optimizer that never steps itself.
ENTRIES = ("master-weights", "sharpness")


def test_of_a_few_programs_at_most_half_a_percent_of_the_peak_is_unknown():
    chosen = [word for entry in ENTRIES for word in ("--entry", entry)]
    done = subprocess.run([sys.executable, str(SCRIPT), *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"| {entry} |" in done.stdout for entry in ENTRIES)
